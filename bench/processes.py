"""Octet's own processes for a bench: started, awaited until they are ready, and terminated."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import clock_gettime
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]  # the root of this checkout, whose packages the started processes use
HOST = "127.0.0.1"
_READY = r"ready on (\S+)"
_ALL_THREADS = 2  # flag of the kernel's per-process CPU clocks


class SiteFailed(RuntimeError):
    """A process did not start."""


class Started(NamedTuple):
    ready: re.Match[str]  # its first line
    pid: int

    @property
    def address(self) -> str:
        return self.ready[1]


def cpu_seconds(pid: int) -> float:
    """Return the seconds of all threads, without children. Raises OSError if there is no such process."""
    return clock_gettime(~pid << 3 | _ALL_THREADS)


async def wait_for_sigterm() -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()


@contextmanager
def pinned(cores: set[int]) -> Iterator[None]:
    """Keep processes that are started meanwhile on these cores."""
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
    """Run `python -m module`; yield once its first line matches `ready`. Raises SiteFailed."""
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
    """The last line that is not blank; empty if there is none."""
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
    """Yield a specialist and a router in front of it; if not `routed`, the specialist twice. `more` applies to both."""
    with scratch_folder() as folder, ExitStack() as stack:
        config = folder / "ensemble.yaml"
        config.write_text(f"engine: sim\nstore: {{url: memory}}\nspecialists: {{{name}}}\n")
        replica_options = ["specialist", "--name", name, "--socket", str(folder / "replica.sock"), *options, *more]
        replica = stack.enter_context(started("octet.cli", replica_options, folder / "replica.log", checkout=checkout))
        router_options = ["router", "--config", str(config), "--port", "0", "--replica", f"{name}={replica.address}"]
        if not routed:
            yield replica, replica
            return
        log = folder / "router.log"
        yield replica, stack.enter_context(started("octet.cli", [*router_options, *more], log, checkout=checkout))
