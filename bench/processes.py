"""Processes of a bench: Octet's own, and those of peers, which can be paused and are ended with all their children."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue
from tempfile import TemporaryDirectory
from threading import Thread
from time import clock_gettime
from typing import Any, Generic, NamedTuple, TypeVar

from octet.cli.serve import find_free_port

ROOT = Path(__file__).resolve().parents[1]  # the root of this checkout, whose packages the started processes use
HOST = "127.0.0.1"
_READY = r"ready on (\S+)"
_ALL_THREADS = 2  # flag of the kernel's per-process CPU clocks


class SiteFailed(RuntimeError):
    """A process of a bench did not start, or did not behave as the bench requires."""


class Started(NamedTuple):
    ready: re.Match[str]  # the match in its first line
    pid: int

    @property
    def address(self) -> str:
        return self.ready[1]


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its threads, not of its children. Raises OSError if it does not exist."""
    return clock_gettime(~pid << 3 | _ALL_THREADS)


async def wait_for_sigterm() -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()


@contextmanager
def pinned(cores: set[int]) -> Iterator[None]:
    """Keep this process, and those that it starts meanwhile, on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def started(
    module: str, arguments: Sequence[str], log: Path, *, ready: str = _READY, checkout: Path = ROOT
) -> Iterator[Started]:
    """Run `python -m module`; yield once its first line matches `ready`. Raises SiteFailed if it does not match."""
    command = [sys.executable, "-m", module, *arguments]
    env = {**os.environ, "PYTHONPATH": str(checkout)}
    with log.open("w") as errors:
        process = subprocess.Popen(  # noqa: S603
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=env, cwd=checkout
        )
    with process:
        try:
            found = re.search(ready, process.stdout.readline() if process.stdout else "")
            if found is None:
                what = " ".join(("octet", arguments[0]) if module == "octet.cli" else (module,))
                raise SiteFailed(f"{what} did not start: {last_line(log)[-300:] or 'no output'}")
            yield Started(found, process.pid)
        finally:
            process.terminate()


def last_line(log: Path) -> str:
    """Return the last line that is not blank; empty if there is none."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next(filter(None, map(str.strip, reversed(lines))), "")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="octet-bench-") as name:
        yield Path(name)


@contextmanager
def replica_and_router(
    name: str, options: Sequence[str], *, more: Sequence[str] = (), checkout: Path = ROOT, routed: bool = True
) -> Iterator[tuple[Started, Started]]:
    """Yield a specialist with these options, and a router in front of it. If not `routed`, start no router and yield
    the specialist twice. `more` are options for both."""
    with scratch_folder() as folder, ExitStack() as stack:
        config = folder / "ensemble.yaml"
        config.write_text(f"engine: sim\nstore: {{url: memory}}\nspecialists: {{{name}}}\n")
        replica_options = ["specialist", "--name", name, "--socket", str(folder / "replica.sock"), *options, *more]
        replica = stack.enter_context(started("octet.cli", replica_options, folder / "replica.log", checkout=checkout))
        router_options = ["router", "--config", str(config), "--port", "0", "--http-port", "0"]
        router_options += ["--replica", f"{name}={replica.address}"]
        if not routed:
            yield replica, replica
            return
        log = folder / "router.log"
        yield replica, stack.enter_context(started("octet.cli", [*router_options, *more], log, checkout=checkout))


_WAIT_AND_KILL = "import os, signal, sys; sys.stdin.read(); os.killpg(int(sys.argv[1]), signal.SIGKILL)"


def _guard(group: int) -> "subprocess.Popen[bytes]":
    """Start a process that kills a process group when this process ends and thereby closes its pipe. The signal that
    the kernel sends at the death of a parent would reach only the first process of the group."""
    command = (sys.executable, "-I", "-S", "-c", _WAIT_AND_KILL, str(group))
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True)  # noqa: S603


def free_ports(number: int) -> list[int]:
    """Return free ports, if possible ports that no connection takes before the server listens."""
    ports: list[int] = []
    for _ in range(number):
        ports.append(find_free_port(HOST, "--port", ports))
    return ports


_LAST_WORDS = 300
_Running = TypeVar("_Running")


class PeerFailed(RuntimeError):
    def __init__(self, name: str, why: str, *, signalled: bool = False) -> None:
        super().__init__(f"{name}: {why}")
        self.signalled = signalled  # killed by a signal such as SIGILL


class _ProcessGroup:
    """A process in its own group, whose output goes to a log unless it is piped."""

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
    """A process that answers calls. It is paused between calls, so that only one peer uses the CPU at a time."""

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
            result = self._receive(f"running {name!r}")["result"]
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
            raise PeerFailed(self.name, f"answered while {doing} with {line[:80]!r}, which is not a JSON object")
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
    """A variant that was started. Of all variants, the one with the least cost is kept."""

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
    """Return the CPU seconds of a process and its descendants. Ended children are counted in whole clock ticks."""
    stats = {each: Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split() for each in tree(pid)}
    return sum(cpu_seconds(each) + sum(map(int, fields[13:15])) / _TICKS for each, fields in stats.items())
