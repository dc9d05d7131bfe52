"""A server's process, with everything that it has started: what it takes, what it says, and its end."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from bench.cpu_clock import cpu_seconds
from bench.peers.guard import Guard
from bench.peers.process import PeerFailed

_TICKS = os.sysconf("SC_CLK_TCK")
_LAST_WORDS = 300


class ServerProcess:
    """What it prints goes to the log. It ends with the bench at the latest."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.name, self._log = name, log
        with log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603
                command,
                env=dict(env),
                cwd=log.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            self._guard = Guard(self.pid)
        except BaseException:
            self._signal(signal.SIGKILL)
            self._process.wait()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu(self) -> float:
        """Seconds so far, with those of children that have ended. Raises PeerFailed."""
        try:
            return cpu_of_tree(self.pid)
        except OSError:
            self.check()
            raise PeerFailed(self.name, "a process of it ended while it was looked at") from None

    def check(self) -> None:
        """Raises PeerFailed once it is dead."""
        code = self._process.poll()
        if code is None:
            return
        said = self.said().split("\n")
        words = [line.strip() for line in said if line.strip()]
        last = f"; its last words: {words[-1][-_LAST_WORDS:]}" if words else ""
        raise PeerFailed(self.name, f"died with exit code {code}{last}; see {self._log}", signalled=code < 0)

    def said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """Kills it and whatever it has started."""
        self._signal(signal.SIGKILL)
        self._guard.dismiss()
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has died already: check() tells
            os.killpg(self.pid, number)


def tree(pid: int) -> Iterator[int]:
    """The process, and whoever descends from it."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from tree(int(child))


def cpu_of_tree(pid: int) -> float:
    """Seconds so far, with those of children that have ended. Raises OSError when one ends meanwhile."""
    return sum(map(_cpu_of, tree(pid)))


def _cpu_of(pid: int) -> float:
    """To the nanosecond; what children have taken that are no more, to the tick."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return cpu_seconds(pid) + sum(map(int, fields[13:15])) / _TICKS
