"""A program that is shown a few files and nothing else, and what became of it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import ceil
from pathlib import Path
from typing import Literal

from router.verify.cage import NAMESPACES, OUT
from router.verify.filters import MACHINES
from router.verify.workshop import Done, Job, Workshop, isolated

Mode = Literal["namespaces", "landlock"]
Fate = Literal["exited", "out_of_cpu", "out_of_time", "flood", "trouble"]
_MODES: tuple[Mode, ...] = ("namespaces", "landlock")
_PROBE_SECONDS = 20
_KILLED = 9


@dataclass(frozen=True, slots=True)
class Limits:
    cpu: float
    """Seconds."""
    seconds: float
    """By the clock."""
    memory: int = 2 << 30
    """Bytes of address space."""
    file: int = 1 << 20
    """Bytes that one file may grow to."""
    said: int = 1 << 16
    """Bytes of output that are read."""


@dataclass(frozen=True, slots=True)
class Caged:
    """What is to run."""

    program: Sequence[str]
    view: Sequence[str]
    """Files and folders that it can read."""
    environment: Mapping[str, str] = field(default_factory=dict)
    writable: str | None = None
    """A folder that it can write; `written` says under which name."""


@dataclass(frozen=True, slots=True)
class Ended:
    fate: Fate
    code: int
    said: str
    """By the program; of the sandbox itself where the fate is trouble."""
    cpu: float
    seconds: float


class Sandbox:
    def __init__(self, mode: Mode, workshop: Workshop, by: str = "") -> None:
        """`by` is who takes turns with others at the workshop."""
        self.mode = mode
        self._by = by
        self._workshop = workshop

    def written(self, writable: str) -> str:
        """Where the program finds the folder that it may write."""
        return OUT if self.mode == NAMESPACES else writable

    async def run(self, caged: Caged, given: bytes, limits: Limits) -> Ended:
        """Never raises but when it is cancelled."""
        command = isolated("router.verify.cage", _order(self.mode, caged, limits))
        try:
            done = await self._workshop.run(Job(command, given, limits.seconds, limits.said, by=self._by))
        except OSError as error:
            return Ended("trouble", 0, f"no process can be started: {error}", 0.0, 0.0)
        return _ended(done, limits)


def _order(mode: Mode, caged: Caged, limits: Limits) -> str:
    return json.dumps(
        {
            "mode": mode,
            "parent": os.getpid(),
            "program": list(caged.program),
            "view": outermost(caged.view),
            "writable": caged.writable,
            "environment": dict(caged.environment),
            "limits": {"cpu": ceil(limits.cpu), "memory": limits.memory, "file": limits.file},
        }
    )


def outermost(paths: Sequence[str]) -> list[str]:
    """Without those that lie in another."""
    kept: list[str] = []
    for path in sorted({os.path.normpath(path) for path in paths if Path(path).exists()}):
        if not any(path == other or path.startswith(f"{other}/") for other in kept):
            kept.append(path)
    return kept


def _ended(done: Done, limits: Limits) -> Ended:
    said = done.said.decode("utf-8", "replace")
    if done.ending != "exited":
        return Ended(done.ending, 0, said, 0.0, done.seconds)
    try:
        report = json.loads(done.out)
    except ValueError:
        return Ended("trouble", 0, f"the sandbox ended with {done.code} and said nothing", 0.0, done.seconds)
    if "trouble" in report:
        return Ended("trouble", 0, report["trouble"], 0.0, done.seconds)
    code, cpu = report["code"], report["cpu"]
    fate: Fate = "out_of_cpu" if code == -_KILLED and cpu >= limits.cpu - 0.5 else "exited"
    return Ended(fate, code, said, cpu, done.seconds)


@cache
def sandbox_mode() -> tuple[Mode | None, str]:
    """The strongest that this machine allows, and why it is not a stronger one. Asked once: it starts a process."""
    reasons: list[str] = []
    for mode in _MODES:
        trouble = _trouble_with(mode)
        if trouble is None:
            return mode, "; ".join(reasons)
        reasons.append(f"{mode}: {trouble}")
    return None, "; ".join(reasons)


def _trouble_with(mode: Mode) -> str | None:
    """Found by doing: `true` runs in it, or what stands in the way."""
    if not sys.platform.startswith("linux") or os.uname().machine not in MACHINES:
        return f"needs Linux on {' or '.join(MACHINES)}"
    program = shutil.which("true")
    if program is None:
        return "no program `true` to try it with"
    caged = Caged([program], [program, *libraries_of(program)])
    command = isolated("router.verify.cage", _order(mode, caged, Limits(5, _PROBE_SECONDS)))
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PROBE_SECONDS, env={}, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    ended = _ended(Done("exited", done.returncode, done.stdout, done.stderr, 0.0), Limits(5, _PROBE_SECONDS))
    if ended.fate == "exited" and ended.code == 0:
        return None
    return ended.said.strip() or f"exit status {ended.code}"


def libraries_of(program: str) -> list[str]:
    """What its loader loads, the loader itself among it; nothing for a static one. Raises OSError."""
    done = subprocess.run(  # noqa: S603
        [program], capture_output=True, env={"LD_TRACE_LOADED_OBJECTS": "1"}, timeout=_PROBE_SECONDS, check=False
    )
    words = done.stdout.decode("utf-8", "replace").split()
    return [word for word in words if word.startswith("/")]
