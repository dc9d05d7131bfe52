"""A router on a core of its own, and everybody else on the other."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from bench.router_farm import REPLICAS, socket_of
from bench.router_hose import NAME as HOSE

SPECIALISTS = ("template", "stl", "algo", "memory", "concurrency", "systems", "build", "debug")
_TICKS = os.sysconf("SC_CLK_TCK")


class SiteFailed(RuntimeError):
    """A process did not start."""


@dataclass(frozen=True, slots=True)
class Site:
    router: str
    """Its address."""
    http_port: int
    replicas: Mapping[str, tuple[str, ...]]
    """Addresses, by specialist."""
    router_pid: int

    def router_cpu(self) -> float:
        """Seconds of CPU it has taken so far."""
        fields = Path(f"/proc/{self.router_pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def router_memory(self) -> int:
        """Resident bytes, at most so far."""
        status = Path(f"/proc/{self.router_pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


@contextmanager
def site() -> Iterator[Site]:
    """Pins this process, too, to the cores that are not the router's, for as long as it lasts."""
    cores = os.sched_getaffinity(0)
    router_core, *other = sorted(cores)
    here = set(other) or cores
    with TemporaryDirectory(prefix="octet-bench-") as folder:
        os.sched_setaffinity(0, here)
        try:
            with _farm(Path(folder)), _router(Path(folder), router_core) as (address, http_port, pid):
                replicas = {name: _addresses(Path(folder), name) for name in SPECIALISTS}
                yield Site(address, http_port, replicas, pid)
        finally:
            os.sched_setaffinity(0, cores)


def _addresses(folder: Path, name: str) -> tuple[str, ...]:
    return tuple(f"unix:{socket_of(folder, name, index)}" for index in range(REPLICAS))


@contextmanager
def _farm(folder: Path) -> Iterator[None]:
    with _started(["-m", "bench.router_farm", str(folder), *SPECIALISTS], folder / "farm.log") as (_, line):
        if "ready" not in line:
            raise SiteFailed(f"the replicas did not start: {(folder / 'farm.log').read_text()[-500:]}")
        yield


@contextmanager
def _router(folder: Path, core: int) -> Iterator[tuple[str, int, int]]:
    """Its address, its port for HTTP and its process."""
    config = folder / "ensemble.yaml"
    names = ", ".join((*SPECIALISTS, HOSE))
    config.write_text(f"classifier: {{path: default}}\nengine: sim\nspecialists: {{{names}}}\n")
    command = ["-m", "octet.cli", "router", "--config", str(config), "--port", "0", "--http-port", "0"]
    for name in SPECIALISTS:
        for address in _addresses(folder, name):
            command += ["--replica", f"{name}={address}"]
    command += ["--replica", f"{HOSE}=unix:{socket_of(folder, HOSE, 0)}"]
    with _started(command, folder / "router.log", core) as (process, line):
        found = re.search(r"ready on (\S+) .*http://127\.0\.0\.1:(\d+)", line)
        if found is None:
            raise SiteFailed(f"the router did not start: {(folder / 'router.log').read_text()[-500:]}")
        yield found[1], int(found[2]), process.pid


@contextmanager
def _started(
    command: Sequence[str], log: Path, core: int | None = None
) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """The process and the first line it says."""
    with log.open("w") as errors, _popen([sys.executable, *command], errors) as process:
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        try:
            yield process, process.stdout.readline() if process.stdout else ""
        finally:
            process.terminate()


def _popen(command: Sequence[str], errors: IO[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)  # noqa: S603
