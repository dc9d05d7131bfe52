"""What a supervised process is to do."""

from collections.abc import Callable
from dataclasses import dataclass

from octet.supervise.status import Status

USAGE = 2
"""The exit status of a process that could never run as it was told to."""


@dataclass(frozen=True, slots=True, eq=False)
class Role:
    """Exactly one of `fork` and `command`."""

    name: str
    fork: Callable[[Status], int] | None = None
    """Runs in a copy of the supervisor, which has imported and mapped what all copies share. The exit status."""
    command: tuple[str, ...] = ()
    """Runs as a program of its own."""
    stage: int = 0
    """Starts when the stages below are ready; ends before they do."""
    ready_words: str | None = None
    """A command that tells no status is ready when it has written a line with these words."""
    reloads: bool = False
    """Whether it wants to hear of SIGHUP."""

    def __post_init__(self) -> None:
        if (self.fork is None) == (not self.command):
            raise ValueError(f"{self.name}: a role is either a callable or a command")
