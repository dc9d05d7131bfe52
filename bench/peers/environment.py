"""A peer's own virtual environment, prepared once and kept in the cache."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Protocol

from bench.atomic_file import write_atomically
from bench.peers.build import cpu_flags, without_amx

Say = Callable[[str], None]

_COMPILERS = ("c++", "g++", "clang++")
_HEARTBEAT = 30.0


class PeerUnavailable(RuntimeError):
    """A peer cannot be prepared here. One line that says why."""


class Installable(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def packages(self) -> tuple[str, ...]: ...

    @property
    def unwanted(self) -> tuple[str, ...]:
        """What the packages bring along and must not have."""

    @property
    def compiled(self) -> bool:
        """Built from C++ sources on this computer."""


@dataclass(frozen=True, slots=True)
class Environment:
    directory: Path
    build: str
    """"native", or how else it had to be compiled."""

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"


def prepare(spec: Installable, peers: Path, say: Say, *, careful: bool = False) -> Environment:
    """The peer's environment, installed unless it is there. `careful` leaves out what the native build died of.

    A careful build is kept for good: once it was needed, it is what is asked for.
    """
    directory = peers / spec.name
    peers.mkdir(parents=True, exist_ok=True)
    with _locked(peers / f"{spec.name}.lock"):
        build = _installed(spec, directory)
        if build is None or (careful and build == "native"):
            build = "without AMX" if careful else "native"
            _install(spec, directory, build, say)
    return Environment(directory, build)


def _installed(spec: Installable, directory: Path) -> str | None:
    """How it was built; None unless it is there, complete, and what the spec asks for."""
    try:
        marker = json.loads((directory / "ready.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return str(marker["build"]) if marker.get("packages") == list(spec.packages) else None


def _install(spec: Installable, directory: Path, build: str, say: Say) -> None:
    if spec.compiled and not any(map(shutil.which, (os.environ.get("CXX", ""), *_COMPILERS))):
        raise PeerUnavailable(f"{spec.name}: has to be compiled and there is no C++ compiler (apt install g++)")
    environment = dict(os.environ)
    if build != "native":
        environment["CMAKE_ARGS"] = without_amx(cpu_flags())
        say(f"{spec.name}: building {build}: CMAKE_ARGS={environment['CMAKE_ARGS']!r}")
    log = directory.with_suffix(".log")
    log.write_bytes(b"")
    stages: list[tuple[str, Sequence[str]]] = [
        ("creating its environment", (sys.executable, "-m", "venv", "--clear", str(directory))),
        (f"installing {' '.join(spec.packages)}", _pip(spec, directory, build)),
    ]
    if spec.unwanted:
        pip = (str(directory / "bin" / "python"), "-m", "pip", "uninstall", "--yes", *spec.unwanted)
        stages.append((f"removing {' '.join(spec.unwanted)}", pip))
    for doing, command in stages:
        _run(spec.name, doing, command, environment, log, say)
    marker = {"packages": list(spec.packages), "build": build}
    write_atomically(directory / "ready.json", json.dumps(marker).encode())


def _pip(spec: Installable, directory: Path, build: str) -> Sequence[str]:
    """A wheel that pip has kept from another build would not be this build."""
    fresh = () if build == "native" else ("--no-cache-dir",)
    return (str(directory / "bin" / "python"), "-m", "pip", "install", *fresh, *spec.packages)


def _run(name: str, doing: str, command: Sequence[str], environment: Mapping[str, str], log: Path, say: Say) -> None:
    say(f"{name}: {doing}")
    start = monotonic()
    with log.open("ab") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL)  # noqa: S603
        try:
            while (code := _wait(process)) is None:
                say(f"{name}: still {doing}, {monotonic() - start:.0f} s")
        except BaseException:
            process.kill()
            process.wait()
            raise
    if code != 0:
        raise PeerUnavailable(f"{name}: {doing} failed with exit code {code}{_last_line(log)}; see {log}")


def _wait(process: "subprocess.Popen[bytes]") -> int | None:
    try:
        return process.wait(_HEARTBEAT)
    except subprocess.TimeoutExpired:
        return None


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return f" ({lines[-1][-200:]})" if lines else ""


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Two benches that start at once install once."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
