"""Processes of peers: started, paused, measured, and ended with all their child processes."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any, Generic, NamedTuple, TypeVar

from bench.processes import HOST, cpu_seconds, last_line

_WAIT_AND_KILL = "import os, signal, sys; sys.stdin.read(); os.killpg(int(sys.argv[1]), signal.SIGKILL)"


def _guard(group: int) -> "subprocess.Popen[bytes]":
    """Start a process that kills the group when this process ends and its pipe closes.

    The signal that the kernel sends when a parent dies would reach only the first process of the group.
    """
    command = (sys.executable, "-I", "-S", "-c", _WAIT_AND_KILL, str(group))
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True)  # noqa: S603


def free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in taken:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in taken]


_LAST_WORDS = 300
_Running = TypeVar("_Running")


class PeerFailed(RuntimeError):
    def __init__(self, name: str, why: str, *, signalled: bool = False) -> None:
        super().__init__(f"{name}: {why}")
        self.signalled = signalled  # killed by a signal such as SIGILL


class _ProcessGroup:
    """A process in its own group, whose errors go to a log."""

    def __init__(self, name: str, command: Sequence[str], log: Path, **options: Any) -> None:
        self.name, self._log = name, log
        with log.open("wb") as errors:
            settings: dict[str, Any] = {"stderr": errors, "stdout": errors, "start_new_session": True, **options}
            self._process = subprocess.Popen(command, **settings)  # noqa: S603
        try:
            self._guard = _guard(self.pid)
        except BaseException:
            self._signal(signal.SIGKILL)
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def output(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._guard.kill()
        self._guard.communicate()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has died already
            os.killpg(self.pid, number)

    def _death(self, doing: str = "") -> PeerFailed:
        code = self._process.wait()
        cause = f"of {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        words = f"; last output: {last[-_LAST_WORDS:]}" if (last := last_line(self._log)) else ""
        return PeerFailed(self.name, f"died {cause}{doing}{words}; see {self._log}", signalled=code < 0)


class Peer(_ProcessGroup):
    """Only one peer computes at a time; the others are stopped, because waiting threads may spin."""

    def __init__(
        self, name: str, command: Sequence[str], *, cwd: Path, env: Mapping[str, str], log: Path, timeout: float
    ) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "encoding": "utf-8"}
        super().__init__(name, command, log, cwd=cwd, env=dict(env), **pipes)
        self.timeout = timeout
        self._lines: Queue[str | None] = Queue()
        Thread(target=self._read, daemon=True).start()
        try:
            ready = self._receive("loading")
            self.settings = str(ready["ready"])
            self.calls = frozenset(ready["calls"])
            self.pause()
        except BaseException:
            self.close()
            raise

    def call(self, name: str, **arguments: object) -> Any:
        try:
            self.resume()
            with suppress(BrokenPipeError):  # the peer has died, so its answer will not come
                print(json.dumps({"call": name, **arguments}), file=self._process.stdin, flush=True)
            result = self._receive(name)["result"]
            self.pause()
        except BaseException:
            self.close()
            raise
        return result

    def close(self) -> None:
        super().close()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # the peer did not read all of its input
                self._process.stdin.close()

    def _read(self) -> None:
        if self._process.stdout is None:
            raise RuntimeError("the peer was started without pipes")
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)

    def _receive(self, doing: str) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=self.timeout)
        except Empty:
            why = f"no answer within {self.timeout:g} s while {doing}; see {self._log}"
            raise PeerFailed(self.name, why) from None
        if line is None:
            raise self._death(f" while {doing}")
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise PeerFailed(self.name, f"answered {line[:80]!r} while {doing}, which is not a JSON object")
        if "error" in message:
            error = " ".join(str(message["error"]).split())[:_LAST_WORDS]
            raise PeerFailed(self.name, f"failed while {doing}: {error}; see {self._log}")
        return message


_TICKS = os.sysconf("SC_CLK_TCK")


class ServerProcess(_ProcessGroup):
    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        super().__init__(name, command, log, env=dict(env), cwd=log.parent, stdin=subprocess.DEVNULL)

    def cpu(self) -> float:
        try:
            return cpu_of_tree(self.pid)
        except OSError:
            self.check()
            raise PeerFailed(self.name, "one of its processes ended while it was measured") from None

    def check(self) -> None:
        """Raises PeerFailed if the peer is dead."""
        if self._process.poll() is not None:
            raise self._death()


class Trial(NamedTuple, Generic[_Running]):
    """A started variant. The variant with the least cost is kept."""

    cost: float
    line: str
    running: _Running
    close: Callable[[], None]


def keep_fastest(launches: Sequence[Callable[[], Trial[_Running]]], say: Callable[[str], None]) -> _Running:
    """Start each variant, and close all but the fastest. Raises PeerFailed if all fail."""
    best: Trial[_Running] | None = None
    failures: list[PeerFailed] = []
    try:
        for launch in launches:
            try:
                trial = launch()
            except PeerFailed as failure:
                failures.append(failure)
                if len(launches) > 1:
                    say(str(failure))
                continue
            best, loser = (trial, best) if best is None or trial.cost < best.cost else (best, trial)
            if loser is not None:
                loser.close()
            say(trial.line)
    except BaseException:
        if best is not None:
            best.close()
        raise
    if best is None:
        raise failures[-1]
    return best.running


def tree(pid: int) -> Iterator[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from tree(int(child))


def cpu_of_tree(pid: int) -> float:
    return sum(map(_cpu_of, tree(pid)))


def _cpu_of(pid: int) -> float:
    """Return the CPU seconds of the process and of its ended children, which the kernel counts in ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return cpu_seconds(pid) + sum(map(int, fields[13:15])) / _TICKS
