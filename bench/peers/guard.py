"""What ends a server's processes once the bench is no more, even if it was killed."""

import subprocess
import sys

_WAIT_AND_KILL = "import os, signal, sys; sys.stdin.read(); os.killpg(int(sys.argv[1]), signal.SIGKILL)"


class Guard:
    """A process beside a group of them, that kills the group when the pipe from here ends.

    The kernel's signal at a parent's death would reach the group's first process alone, and leave those that it has
    started, stopped, with all their memory.
    """

    def __init__(self, group: int) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            (sys.executable, "-I", "-S", "-c", _WAIT_AND_KILL, str(group)),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """The group is ended otherwise."""
        self._process.kill()
        self._process.communicate()
