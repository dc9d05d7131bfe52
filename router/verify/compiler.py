"""A C++ compiler to be run by itself: the program behind the driver, its arguments, and every file it reads."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from router.verify.sandbox import Caged, libraries_of

STANDARD, NEXT_STANDARD = "gnu++20", "gnu++2b"
AUTO = "auto"
_KNOWN = ("g++", "clang++")
_ASK_SECONDS = 20
_FOR_GCC = ("-w", "-fmax-errors=3", "-fno-diagnostics-show-caret", "-fdiagnostics-color=never")
_FOR_CLANG = ("-w", "-ferror-limit", "3", "-fno-caret-diagnostics", "-fno-spell-checking")
_EMIT = ("-emit-pch", "-fpch-instantiate-templates")
"""What the headers themselves instantiate is done once, beforehand: most of the time goes there."""
_GCC_PAIRS = ("-o", "-auxbase", "-imultiarch", "-dumpdir", "-dumpbase", "-dumpbase-ext")
_CLANG_PAIRS = ("-x", "-o", "-ferror-limit", "-main-file-name")
"""What is said otherwise here, with the word after it."""
_IN_A_FOLDER = ("-I", "-isystem", "-internal-isystem", "-internal-externc-isystem", "-resource-dir")


class NoCompiler(Exception):
    """There is none, or it cannot be asked how it works."""


@dataclass(frozen=True, slots=True)
class Compiler:
    driver: str
    version: str
    """Its first line about itself."""
    is_clang: bool
    program: str
    arguments: tuple[str, ...]
    """Without a standard, and without anything to read."""
    headers: tuple[str, ...]
    """Folders, in the order they are searched."""
    libraries: tuple[str, ...]

    @property
    def precompiled_suffix(self) -> str:
        return ".pch" if self.is_clang else ".gch"

    def check(self, standard: str, preamble: Path | None, *, is_precompiled: bool) -> Caged:
        """Reads standard input, says what is wrong with it, and writes nothing."""
        before: tuple[str, ...] = ()
        if preamble is not None and is_precompiled and self.is_clang:
            before = ("-include-pch", f"{preamble}{self.precompiled_suffix}")
        elif preamble is not None:
            before = ("-include", str(preamble))
        view = () if preamble is None else (str(preamble.parent),)
        return self._caged(("-fsyntax-only", f"-std={standard}", *before, "-o", "-", "-x", "c++", "-"), view)

    def precompile(self, header: Path, out: str, writable: Path) -> Caged:
        """Writes what `check` reads faster than the header itself."""
        if self.is_clang:
            act: tuple[str, ...] = (*_EMIT, f"-std={STANDARD}", "-o", out, "-x", "c++-header", str(header))
        else:
            act = (f"-std={STANDARD}", "-o", f"{out}.s", "--output-pch=", out, str(header))
        return self._caged(act, (str(header.parent),), str(writable))

    def _caged(self, act: tuple[str, ...], view: tuple[str, ...], writable: str | None = None) -> Caged:
        if not self.is_clang:
            act = tuple(one for one in act if one not in ("-x", "c++"))
        folders = sorted({str(Path(library).parent) for library in self.libraries})
        return Caged(
            [self.program, *self.arguments, *act],
            [self.program, *self.headers, *self.libraries, *view],
            {"LC_ALL": "C", "LD_LIBRARY_PATH": ":".join(folders)},
            writable,
        )


def find_compiler(wanted: str) -> str:
    """Raises NoCompiler."""
    for name in _KNOWN if wanted == AUTO else (wanted,):
        path = shutil.which(name)
        if path is not None:
            return str(Path(path).absolute())
    if wanted == AUTO:
        raise NoCompiler(f"neither {' nor '.join(_KNOWN)} is installed")
    raise NoCompiler(f"there is no program {wanted!r}: name a C++ compiler, by its name or path, or say {AUTO}")


def ask_compiler(driver: str) -> Compiler:
    """How the driver would do it: it is asked, not trusted to run others inside the sandbox. Raises NoCompiler."""
    version = _said([driver, "--version"]).partition("\n")[0]
    words = _command_in(_said([driver, "-###", "-fsyntax-only", "-x", "c++", "-"]))
    is_clang = "-cc1" in words
    headers = tuple(_search_folders(_said([driver, "-E", "-v", "-x", "c++", os.devnull])))
    if not headers:
        raise NoCompiler(f"{driver} does not say where its headers are")
    program = os.path.realpath(words[0])
    return Compiler(
        driver,
        version,
        is_clang,
        program,
        _for_clang(words[1:]) if is_clang else _for_gcc(words[1:], headers),
        (*headers, *_resource_folder(words)),
        tuple(libraries_of(program)),
    )


def _said(command: Sequence[str]) -> str:
    environment = {"LC_ALL": "C", "PATH": os.environ.get("PATH", os.defpath)}
    try:
        done = subprocess.run(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_ASK_SECONDS,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoCompiler(f"{command[0]} cannot be asked: {error}") from error
    return done.stdout.decode("utf-8", "replace")


def _command_in(said: str) -> list[str]:
    for line in said.splitlines():
        if line.startswith(" ") and ("cc1plus" in line or '"-cc1"' in line):
            return shlex.split(line)
    raise NoCompiler("it is no C++ compiler of the GCC or Clang family")


def _search_folders(said: str) -> list[str]:
    _, _, after = said.partition("#include <...> search starts here:\n")
    listed, _, _ = after.partition("End of search list.")
    return [os.path.realpath(line.strip()) for line in listed.splitlines()]


def _for_gcc(words: list[str], headers: Sequence[str]) -> tuple[str, ...]:
    kept = [word for word in words if word not in ("-", "-quiet", "-fsyntax-only")]
    told = ("-nostdinc", "-nostdinc++", *(word for folder in headers for word in ("-isystem", folder)))
    return ("-quiet", *_without_pairs(kept, _GCC_PAIRS), *_FOR_GCC, *told)


def _for_clang(words: list[str]) -> tuple[str, ...]:
    kept = [word for word in words[:-1] if word != "-fsyntax-only" and "compilation-dir" not in word]
    return (*_real_folders(_without_pairs(kept, _CLANG_PAIRS)), *_FOR_CLANG)


def _without_pairs(words: list[str], named: tuple[str, ...]) -> list[str]:
    return [word for before, word in zip(["", *words], words, strict=False) if not {before, word} & set(named)]


def _real_folders(words: list[str]) -> list[str]:
    """The driver writes /a/../b, and inside there is no /a."""
    pairs = zip(["", *words], words, strict=False)
    return [os.path.realpath(word) if before in _IN_A_FOLDER else word for before, word in pairs]


def _resource_folder(words: list[str]) -> tuple[str, ...]:
    if "-resource-dir" not in words:
        return ()
    return (os.path.realpath(words[words.index("-resource-dir") + 1] + "/include"),)
