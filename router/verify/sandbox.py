"""Run a program in a sandbox with access to only a few files."""

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

from router.verify.pool import PoolTask, TaskResult, VerifierPool, isolated_command
from router.verify.sandbox_child import AUDIT_ARCHITECTURES, NAMESPACES, OUTPUT_FOLDER

SandboxMode = Literal["namespaces", "landlock"]
SandboxEnding = Literal["exited", "out_of_cpu", "out_of_time", "flood", "trouble"]
_MODES: tuple[SandboxMode, ...] = ("namespaces", "landlock")
_CHILD = "router.verify.sandbox_child"
_PROBE_SECONDS = 20
_KILLED = 9


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    cpu: float
    seconds: float
    memory: int = 2 << 30  # bytes of address space
    file: int = 1 << 20  # bytes of each file that it writes
    output: int = 1 << 16


@dataclass(frozen=True, slots=True)
class SandboxedProgram:
    command: Sequence[str]
    readable: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    writable: str | None = None  # a folder; inside the sandbox its path is `Sandbox.output_path`


@dataclass(frozen=True, slots=True)
class SandboxResult:
    ending: SandboxEnding
    code: int
    output: str  # the program's output; the sandbox's own error if the ending is `trouble`
    cpu: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Sandbox:
    mode: SandboxMode
    _pool: VerifierPool
    _owner: str = ""

    def output_path(self, writable: str) -> str:
        """Return the path of the writable folder as the program sees it."""
        return OUTPUT_FOLDER if self.mode == NAMESPACES else writable

    async def run(self, program: SandboxedProgram, stdin: bytes, limits: SandboxLimits) -> SandboxResult:
        """Run the program. Raises no exception but CancelledError."""
        command = isolated_command(_CHILD, _child_order(self.mode, program, limits))
        try:
            result = await self._pool.run(PoolTask(command, stdin, limits.seconds, limits.output, owner=self._owner))
        except OSError as error:
            return SandboxResult("trouble", 0, f"cannot start a process: {error}", 0.0, 0.0)
        return _read_result(result, limits)


def _child_order(mode: SandboxMode, program: SandboxedProgram, limits: SandboxLimits) -> str:
    return json.dumps(
        {
            "mode": mode,
            "parent": os.getpid(),
            "program": list(program.command),
            "view": outermost_paths(program.readable),
            "writable": program.writable,
            "environment": dict(program.environment),
            "limits": {"cpu": ceil(limits.cpu), "memory": limits.memory, "file": limits.file},
        }
    )


def outermost_paths(paths: Sequence[str]) -> list[str]:
    """Return the existing paths, without those that are inside another of them."""
    outer: list[str] = []
    for path in sorted({os.path.normpath(path) for path in paths if Path(path).exists()}):
        if not any(path == other or path.startswith(f"{other}/") for other in outer):
            outer.append(path)
    return outer


def _read_result(result: TaskResult, limits: SandboxLimits) -> SandboxResult:
    output = result.stderr.decode("utf-8", "replace")
    if result.ending != "exited":
        return SandboxResult(result.ending, 0, output, 0.0, result.seconds)
    try:
        report = json.loads(result.stdout)
    except ValueError:
        error = f"the sandbox exited with {result.code} and wrote no report"
        return SandboxResult("trouble", 0, error, 0.0, result.seconds)
    if "trouble" in report:
        return SandboxResult("trouble", 0, report["trouble"], 0.0, result.seconds)
    code, cpu = report["code"], report["cpu"]
    ending: SandboxEnding = "out_of_cpu" if code == -_KILLED and cpu >= limits.cpu - 0.5 else "exited"
    return SandboxResult(ending, code, output, cpu, result.seconds)


@cache
def sandbox_mode() -> tuple[SandboxMode | None, str]:
    """Return the strongest mode that this machine allows, and why it allows no stronger one. Cached."""
    reasons: list[str] = []
    for mode in _MODES:
        error = _probe_mode(mode)
        if error is None:
            return mode, "; ".join(reasons)
        reasons.append(f"{mode}: {error}")
    return None, "; ".join(reasons)


def _probe_mode(mode: SandboxMode) -> str | None:
    """Run `true` in this mode. Return None on success, else the reason for the failure."""
    if not sys.platform.startswith("linux") or os.uname().machine not in AUDIT_ARCHITECTURES:
        return f"needs Linux on {' or '.join(AUDIT_ARCHITECTURES)}"
    path = shutil.which("true")
    if path is None:
        return "there is no program `true` to test it with"
    program, limits = SandboxedProgram([path], [path, *shared_libraries(path)]), SandboxLimits(5, _PROBE_SECONDS)
    command = isolated_command(_CHILD, _child_order(mode, program, limits))
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PROBE_SECONDS, env={}, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    result = _read_result(TaskResult("exited", done.returncode, done.stdout, done.stderr, 0.0), limits)
    if result.ending == "exited" and result.code == 0:
        return None
    return result.output.strip() or f"exit status {result.code}"


def shared_libraries(program: str) -> list[str]:
    """Return the dynamic loader and the libraries that the program loads; nothing if it is static. Raises OSError."""
    done = subprocess.run(  # noqa: S603
        [program], capture_output=True, env={"LD_TRACE_LOADED_OBJECTS": "1"}, timeout=_PROBE_SECONDS, check=False
    )
    words = done.stdout.decode("utf-8", "replace").split()
    return [word for word in words if word.startswith("/")]
