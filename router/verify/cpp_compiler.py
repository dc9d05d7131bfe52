"""The C++ compiler: discovery, command lines, precompiled headers."""

import asyncio
import hashlib
import logging
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from router.verify.sandbox import Sandbox, SandboxedProgram, SandboxLimits, shared_libraries

STANDARD, NEXT_STANDARD = "gnu++20", "gnu++2b"
AUTO_COMPILER = "auto"
_KNOWN = ("g++", "clang++")
_ASK_SECONDS = 20
_FOR_GCC = ("-w", "-fmax-errors=3", "-fno-diagnostics-show-caret", "-fdiagnostics-color=never")
_FOR_CLANG = ("-w", "-ferror-limit", "3", "-fno-caret-diagnostics", "-fno-spell-checking")
_EMIT_PCH = ("-emit-pch", "-fpch-instantiate-templates")
"""Instantiates the headers' own templates only once, when they are precompiled: that is most of the work."""
_GCC_PAIRS = ("-o", "-auxbase", "-imultiarch", "-dumpdir", "-dumpbase", "-dumpbase-ext")
_CLANG_PAIRS = ("-x", "-o", "-ferror-limit", "-main-file-name")
"""Options of the driver, each with a value, that the router replaces."""
_SEARCH_LIST = "#include <...> search starts here:\n"
_FOLDER_OPTIONS = ("-I", "-isystem", "-internal-isystem", "-internal-externc-isystem", "-resource-dir")


class CompilerUnavailable(Exception):
    """No compiler is installed, or it does not report its settings."""


@dataclass(frozen=True, slots=True)
class CppCompiler:
    driver: str
    version: str  # the first line of `--version`
    is_clang: bool
    program: str
    arguments: tuple[str, ...]  # without a language standard and without inputs
    headers: tuple[str, ...]
    libraries: tuple[str, ...]

    @property
    def precompiled_suffix(self) -> str:
        return ".pch" if self.is_clang else ".gch"

    def check(self, standard: str, preamble: Path | None, *, is_precompiled: bool) -> SandboxedProgram:
        """Return a program that compiles standard input, reports errors, and writes no output."""
        before: tuple[str, ...] = ()
        if preamble is not None and is_precompiled and self.is_clang:
            before = ("-include-pch", f"{preamble}{self.precompiled_suffix}")
        elif preamble is not None:
            before = ("-include", str(preamble))
        readable = () if preamble is None else (str(preamble.parent),)
        return self._program(("-fsyntax-only", f"-std={standard}", *before, "-o", "-", "-x", "c++", "-"), readable)

    def precompile(self, header: Path, out: str, writable: Path) -> SandboxedProgram:
        """Return a program that precompiles the header for `check`."""
        if self.is_clang:
            act: tuple[str, ...] = (*_EMIT_PCH, f"-std={STANDARD}", "-o", out, "-x", "c++-header", str(header))
        else:
            act = (f"-std={STANDARD}", "-o", f"{out}.s", "--output-pch=", out, str(header))
        return self._program(act, (str(header.parent),), str(writable))

    def _program(
        self, act: tuple[str, ...], readable: tuple[str, ...], writable: str | None = None
    ) -> SandboxedProgram:
        if not self.is_clang:
            act = tuple(word for word in act if word not in ("-x", "c++"))
        folders = sorted({str(Path(library).parent) for library in self.libraries})
        return SandboxedProgram(
            [self.program, *self.arguments, *act],
            [self.program, *self.headers, *self.libraries, *readable],
            {"LC_ALL": "C", "LD_LIBRARY_PATH": ":".join(folders)},
            writable,
        )


def find_compiler(wanted: str) -> str:
    for name in _KNOWN if wanted == AUTO_COMPILER else (wanted,):
        path = shutil.which(name)
        if path is not None:
            return str(Path(path).absolute())
    if wanted == AUTO_COMPILER:
        raise CompilerUnavailable(f"neither {' nor '.join(_KNOWN)} is installed")
    raise CompilerUnavailable(
        f"there is no program {wanted!r}: give the name or path of a C++ compiler, or {AUTO_COMPILER}"
    )


def probe_compiler(driver: str) -> CppCompiler:
    """Find out which compiler the driver runs, and with which arguments. The sandbox runs that compiler directly,
    because it allows no second process. Raises CompilerUnavailable."""
    version = _run_driver([driver, "--version"]).partition("\n")[0]
    words = _command_in(_run_driver([driver, "-###", "-fsyntax-only", "-x", "c++", "-"]))
    _, _, after = _run_driver([driver, "-E", "-v", "-x", "c++", os.devnull]).partition(_SEARCH_LIST)
    listed = after.partition("End of search list.")[0].splitlines()
    headers = [os.path.realpath(line.strip()) for line in listed]
    if not headers:
        raise CompilerUnavailable(f"{driver} -v lists no include directories")
    is_clang = "-cc1" in words
    if is_clang:
        kept = [word for word in words[1:-1] if word != "-fsyntax-only" and "compilation-dir" not in word]
        kept = _without_pairs(kept, _CLANG_PAIRS)
        pairs = zip(["", *kept], kept, strict=False)  # resolves /a/../b, because the sandbox may have no /a
        folders = [os.path.realpath(word) if before in _FOLDER_OPTIONS else word for before, word in pairs]
        arguments = (*folders, *_FOR_CLANG)
    else:
        kept = [word for word in words[1:] if word not in ("-", "-quiet", "-fsyntax-only")]
        folders = ["-nostdinc", "-nostdinc++", *(word for folder in headers for word in ("-isystem", folder))]
        arguments = ("-quiet", *_without_pairs(kept, _GCC_PAIRS), *_FOR_GCC, *folders)
    if "-resource-dir" in words:
        headers.append(os.path.realpath(words[words.index("-resource-dir") + 1] + "/include"))
    program = os.path.realpath(words[0])
    libraries = tuple(shared_libraries(program))
    return CppCompiler(driver, version, is_clang, program, arguments, tuple(headers), libraries)


def _run_driver(command: Sequence[str]) -> str:
    environment = {"LC_ALL": "C", "PATH": os.environ.get("PATH", os.defpath)}
    try:
        done = subprocess.run(  # noqa: S603
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_SECONDS, env=environment, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilerUnavailable(f"cannot run {command[0]}: {error}") from error
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def _command_in(output: str) -> list[str]:
    for line in output.splitlines():
        if line.startswith(" ") and ("cc1plus" in line or '"-cc1"' in line):
            return shlex.split(line)
    raise CompilerUnavailable("the configured compiler is not a C++ compiler of the GCC or Clang family")


def _without_pairs(words: list[str], named: tuple[str, ...]) -> list[str]:
    return [word for before, word in zip(["", *words], words, strict=False) if not {before, word} & set(named)]


_log = logging.getLogger(__name__)
_STALE_SECONDS = 30 * 86_400
_BUILD_LIMITS = SandboxLimits(cpu=120, seconds=300, memory=4 << 30, file=1 << 30)
_HEADER_NAME = "preamble.hpp"

_C_HEADERS = (
    "assert ctype errno fenv float inttypes limits locale math setjmp signal stdarg stddef stdint stdio stdlib "
    "string time"
)
_CPP_HEADERS = (
    "algorithm any array atomic barrier bit bitset charconv chrono compare complex concepts condition_variable "
    "coroutine deque exception execution filesystem format forward_list fstream functional future initializer_list "
    "iomanip ios iosfwd iostream istream iterator latch limits list locale map memory memory_resource mutex new "
    "numbers numeric optional ostream queue random ranges ratio regex scoped_allocator semaphore set shared_mutex "
    "source_location span sstream stack stdexcept stop_token streambuf string string_view syncstream system_error "
    "thread tuple type_traits typeindex typeinfo unordered_map unordered_set utility valarray variant vector version"
)
_NEWER_HEADERS = (
    "debugging expected flat_map flat_set generator hazard_pointer inplace_vector linalg mdspan print rcu simd "
    "spanstream stacktrace stdfloat text_encoding"
)
NEWER_HEADERS = frozenset(_NEWER_HEADERS.split())  # headers of later standards, which the compiler may lack


def header_text() -> str:
    names = [
        *(f"c{name}" for name in _C_HEADERS.split()),
        *(f"{name}.h" for name in _C_HEADERS.split()),
        *_CPP_HEADERS.split(),
    ]
    return "".join(f"#if __has_include(<{name}>)\n#include <{name}>\n#endif\n" for name in names)


class PrecompiledHeaders:
    """The standard headers, compiled once and cached: a check takes a fifth of the time that it takes without them.
    Each version of each compiler has its own folder in the user's cache."""

    def __init__(self, compiler: CppCompiler, cache: Path) -> None:
        self.is_precompiled = False
        self._compiler = compiler
        self._cache = cache
        self._folder = cache / f"preamble-{_digest(compiler)}"

    @property
    def header(self) -> Path:
        return self._folder / _HEADER_NAME

    @property
    def _precompiled(self) -> Path:
        return self.header.with_name(_HEADER_NAME + self._compiler.precompiled_suffix)

    @property
    def is_lost(self) -> bool:
        return self.is_precompiled and not self._precompiled.exists()

    async def prepare(self, sandbox: Sandbox) -> None:
        """Write and precompile the headers unless they are cached. Raises OSError if the source cannot be written."""
        await asyncio.to_thread(self._write_header)
        if not self._precompiled.exists():
            await self._precompile(sandbox)
        self.is_precompiled = self._precompiled.exists()

    def discard(self) -> None:
        self._precompiled.unlink(missing_ok=True)
        self.is_precompiled = False

    async def _precompile(self, sandbox: Sandbox) -> None:
        ours = Path(tempfile.mkdtemp(dir=self._folder))
        out = ours / "out"
        try:
            out.mkdir()
            out.chmod(0o777)  # the sandbox runs as another user; the folder around this one admits no other user
            name = f"{sandbox.output_path(str(out))}/{self._precompiled.name}"
            ended = await sandbox.run(self._compiler.precompile(self.header, name, out), b"", _BUILD_LIMITS)
            if ended.ending == "exited" and ended.code == 0:
                built = out / self._precompiled.name
                built.chmod(0o644)
                built.replace(self._precompiled)
            else:
                _log.warning("Cannot precompile the C++ headers; verdicts will be slow: %s", ended)
        finally:
            await asyncio.to_thread(shutil.rmtree, ours, True)

    def _write_header(self) -> None:
        self._cache.mkdir(parents=True, exist_ok=True)
        self._folder.mkdir(exist_ok=True)
        self._folder.chmod(0o755)
        _check_owner(self._cache)
        _check_owner(self._folder)
        os.utime(self._folder)
        if not self.header.exists():
            fresh = self.header.with_name(f"{_HEADER_NAME}.{os.getpid()}")
            fresh.write_text(header_text())
            fresh.chmod(0o644)
            fresh.replace(self.header)
        _remove_stale(self._cache)


def default_cache_folder() -> Path:
    """Return Octet's folder in the user's cache. Raises OSError if the user has no home directory."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octet"
    except RuntimeError as error:
        raise OSError(str(error)) from error


def _digest(compiler: CppCompiler) -> str:
    program, command = Path(compiler.program).stat(), compiler.precompile(Path(), "", Path())
    parts = (compiler, command, program.st_size, program.st_mtime_ns, STANDARD, header_text())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _check_owner(folder: Path) -> None:
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(f"{folder} belongs to another user, or is writable by others")


def _remove_stale(cache: Path) -> None:
    for folder in cache.glob("preamble-*"):
        if time.time() - folder.stat().st_mtime > _STALE_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
