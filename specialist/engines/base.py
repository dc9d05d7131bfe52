"""The interface between deciding and computing."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from specialist.step import Outcome, Rollback, Step


class EngineFault(RuntimeError):
    """A step failed. Names the request to blame when the engine knows it."""

    def __init__(self, error: str, culprit: str | None = None) -> None:
        super().__init__(error)
        self.culprit = culprit


class Completion(NamedTuple):
    step: Step
    outcome: Outcome


class Engine(Protocol):
    def run(self, step: Step) -> Iterable[Completion]:
        """Compute the rows' tokens, write their KV through their tables, and sample.

        Returns the completions that have arrived: as a rule this step's and no other. May raise; whatever
        the step has written by then does not count. Once it has returned or raised, the engine no longer
        writes to the step's blocks: they may belong to somebody else.
        """

    def discard(self, rollbacks: Iterable[Rollback]) -> None:
        """Zero slots whose content does not count."""
