"""Compile the kernels for the CPU at hand, once."""

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from octet.identity import digest_of

SOURCES = Path(__file__).parent
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-pthread")
COMPILERS = ("c++", "g++", "clang++")
TIMEOUT_SECONDS = 300


class BuildFailed(RuntimeError):
    """There is no compiler, or it cannot compile the kernels. The message says what to do."""


def build(cache: Path, flags: Sequence[str] | None = None) -> Path:
    """The shared library for this CPU and compiler, compiled unless it is in the cache already.

    `flags` stand in for those of the CPU at hand. Whatever they are, the library computes the same to the bit.
    """
    compiler = find_compiler()
    flags = (*FLAGS, *(native_flags() if flags is None else flags))
    library = cache / "kernels" / f"{_key(compiler, flags)}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        _compile(compiler, flags, library)
    return library


def find_compiler() -> str:
    named = os.environ.get("CXX")
    for name in (named,) if named else COMPILERS:
        if found := shutil.which(name):
            return found
    wanted = f"CXX={named}" if named else " or ".join(COMPILERS)
    raise BuildFailed(f"no C++ compiler found ({wanted}): install one, such as Debian's g++, for the fast CPU kernels")


def native_flags() -> tuple[str, ...]:
    return ("-mcpu=native",) if platform.machine() == "aarch64" else ("-march=native",)


def _key(compiler: str, flags: Sequence[str]) -> str:
    """Another source, compiler, flag or CPU is another library."""
    sources = sorted(path for path in SOURCES.iterdir() if path.suffix in (".cpp", ".hpp"))
    version = _run([compiler, "--version"]).encode()
    parts = [part for path in sources for part in (path.name.encode(), path.read_bytes())]
    return digest_of([version, " ".join(flags).encode(), _cpu(), *parts]).hex()[:32]


def _cpu() -> bytes:
    """What `native` means here."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor().encode()
    wanted = ("model name", "flags", "Features", "CPU part", "CPU implementer")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)})).encode()


def _compile(compiler: str, flags: Sequence[str], library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        fresh = Path(folder) / library.name
        _run([compiler, *flags, *map(str, sorted(SOURCES.glob("*.cpp"))), "-o", str(fresh)])
        fresh.replace(library)


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildFailed(f"{command[0]} could not be run: {error}") from error
    if done.returncode:
        raise BuildFailed(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout
