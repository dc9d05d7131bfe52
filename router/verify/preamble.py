"""The headers that every answer may count on, compiled once and kept: a check then takes a fifth of the time."""

import asyncio
import hashlib
import logging
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from router.verify.compiler import STANDARD, Compiler
from router.verify.sandbox import Limits, Sandbox

_log = logging.getLogger(__name__)
_STALE_SECONDS = 30 * 86_400
_BUILD = Limits(cpu=120, seconds=300, memory=4 << 30, file=1 << 30)
_HEADER = "preamble.hpp"

_C = (
    "assert ctype errno fenv float inttypes limits locale math setjmp signal stdarg stddef stdint stdio stdlib "
    "string time"
)
_CPP = (
    "algorithm any array atomic barrier bit bitset charconv chrono compare complex concepts condition_variable "
    "coroutine deque exception execution filesystem format forward_list fstream functional future initializer_list "
    "iomanip ios iosfwd iostream istream iterator latch limits list locale map memory memory_resource mutex new "
    "numbers numeric optional ostream queue random ranges ratio regex scoped_allocator semaphore set shared_mutex "
    "source_location span sstream stack stdexcept stop_token streambuf string string_view syncstream system_error "
    "thread tuple type_traits typeindex typeinfo unordered_map unordered_set utility valarray variant vector version"
)
_NEWER = (
    "debugging expected flat_map flat_set generator hazard_pointer inplace_vector linalg mdspan print rcu simd "
    "spanstream stacktrace stdfloat text_encoding"
)
NEWER = frozenset(_NEWER.split())
"""Headers of a standard that the compiler may not know yet."""


def preamble_text() -> str:
    names = [*(f"c{name}" for name in _C.split()), *(f"{name}.h" for name in _C.split()), *_CPP.split()]
    return "".join(f"#if __has_include(<{name}>)\n#include <{name}>\n#endif\n" for name in names)


class Preamble:
    """One folder below the user's cache for each compiler, as it is now."""

    def __init__(self, compiler: Compiler, cache: Path) -> None:
        self.is_precompiled = False
        self._compiler = compiler
        self._cache = cache
        self._folder = cache / f"preamble-{_digest(compiler)}"

    @property
    def header(self) -> Path:
        return self._folder / _HEADER

    @property
    def _precompiled(self) -> Path:
        return self.header.with_name(_HEADER + self._compiler.precompiled_suffix)

    @property
    def is_lost(self) -> bool:
        """Somebody removed it."""
        return self.is_precompiled and not self._precompiled.exists()

    async def prepare(self, sandbox: Sandbox) -> None:
        """Raises OSError where not even the header can be written."""
        await asyncio.to_thread(self._write_header)
        if not self._precompiled.exists():
            await self._precompile(sandbox)
        self.is_precompiled = self._precompiled.exists()

    def distrust(self) -> None:
        """It was of no use."""
        self._precompiled.unlink(missing_ok=True)
        self.is_precompiled = False

    async def _precompile(self, sandbox: Sandbox) -> None:
        ours = Path(tempfile.mkdtemp(dir=self._folder))
        out = ours / "out"
        try:
            out.mkdir()
            out.chmod(0o777)  # whoever works inside is nobody, and nobody else gets through the folder around it
            name = f"{sandbox.written(str(out))}/{self._precompiled.name}"
            ended = await sandbox.run(self._compiler.precompile(self.header, name, out), b"", _BUILD)
            if ended.fate == "exited" and ended.code == 0:
                built = out / self._precompiled.name
                built.chmod(0o644)
                built.replace(self._precompiled)
            else:
                _log.warning("the headers cannot be compiled beforehand, which makes verdicts slow: %s", ended)
        finally:
            await asyncio.to_thread(shutil.rmtree, ours, True)

    def _write_header(self) -> None:
        self._cache.mkdir(parents=True, exist_ok=True)
        self._folder.mkdir(exist_ok=True)
        self._folder.chmod(0o755)
        _refuse_strangers(self._cache)
        _refuse_strangers(self._folder)
        os.utime(self._folder)
        if not self.header.exists():
            fresh = self.header.with_name(f"{_HEADER}.{os.getpid()}")
            fresh.write_text(preamble_text())
            fresh.chmod(0o644)
            fresh.replace(self.header)
        _remove_stale(self._cache)


def default_cache() -> Path:
    """Raises OSError where the user has no home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octet"
    except RuntimeError as error:
        raise OSError(str(error)) from error


def _digest(compiler: Compiler) -> str:
    program = Path(compiler.program).stat()
    parts = (
        compiler,
        compiler.precompile(Path(), "", Path()),
        program.st_size,
        program.st_mtime_ns,
        STANDARD,
        preamble_text(),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _refuse_strangers(folder: Path) -> None:
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(f"{folder} belongs to somebody else, or others can write it")


def _remove_stale(cache: Path) -> None:
    for folder in cache.glob("preamble-*"):
        if time.time() - folder.stat().st_mtime > _STALE_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
