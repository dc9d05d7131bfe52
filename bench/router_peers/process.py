"""A router's process: what it takes, and that it takes nothing while another one is measured."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.cpu_clock import cpu_seconds
from bench.peers.process import PeerFailed

_TICKS = os.sysconf("SC_CLK_TCK")
_LAST_WORDS = 300


@contextmanager
def pinned(cores: set[int]) -> Iterator[None]:
    """Whoever is started meanwhile stays on these cores, with all its threads and children."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class RouterProcess:
    """With everything that it has started."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path, cores: set[int]) -> None:
        self.name, self._log = name, log
        with log.open("wb") as output, pinned(cores):
            self._process = subprocess.Popen(  # noqa: S603
                command,
                env=dict(env),
                cwd=log.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def cpu(self) -> float:
        """Seconds so far, with those of children that have ended. Raises PeerFailed."""
        try:
            return sum(_cpu_of(pid) for pid in _tree(self._process.pid))
        except OSError:
            self.check()
            raise PeerFailed(self.name, "a process of it ended while it was looked at") from None

    def memory(self) -> int:
        """Bytes, each shared page shared out among those who share it."""
        return sum(_pss_of(pid) for pid in _tree(self._process.pid))

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
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has died already: check() tells
            os.killpg(self._process.pid, number)


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from _tree(int(child))


def _cpu_of(pid: int) -> float:
    """To the nanosecond; what children have taken that are no more, to the tick."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return cpu_seconds(pid) + sum(map(int, fields[13:15])) / _TICKS


def _pss_of(pid: int) -> int:
    found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"/proc/{pid}/smaps_rollup tells no Pss")
    return int(found[1]) * 1024
