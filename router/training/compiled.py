"""Prompts that the compiler itself writes: broken snippets of ours, and what a compiler, linker, sanitizer or debugger
says about them.

python -m router.training.compiled g++ router/data/snippets-gcc.txt router/data/corpus/gcc.jsonl
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from router.training.records import Record, write_records

MARK = "//== "
MAX_SAID_BYTES = 3000
SECONDS = 60
SOURCES = {"g++": "gcc", "clang++": "clang"}
GDB = ("gdb", "-batch", "-nx", "-ex", "set debuginfod enabled off", "-ex", "run", "-ex", "bt 12", "--args")


@dataclass(frozen=True, slots=True)
class Snippet:
    label: str
    act: str
    """compile, link, run, or gdb: how far the snippet is taken before something goes wrong."""
    flags: tuple[str, ...]
    code: str


def read_snippets(text: str) -> Iterator[Snippet]:
    for part in text.split(MARK)[1:]:
        head, _, code = part.partition("\n")
        label, act, *flags = head.split()
        yield Snippet(label, act, tuple(flags), code)


def said_about(snippet: Snippet, compiler: str, folder: Path) -> str:
    """What the last tool says, without the name of the folder it ran in; nothing where it had nothing to run."""
    (folder / "main.cpp").write_text(snippet.code, encoding="utf-8")
    only = ["-fsyntax-only"] if snippet.act == "compile" else ["-g", "-o", "app"]
    said = _output([compiler, "-std=c++20", "-Wall", "main.cpp", *only, *snippet.flags], folder)
    if snippet.act in ("run", "gdb"):
        runner = GDB if snippet.act == "gdb" else ()
        said = _output([*runner, "./app"], folder) if (folder / "app").exists() else ""
    return said.replace(f"{folder}/", "")[:MAX_SAID_BYTES].strip()


def _output(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(  # noqa: S603
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS, check=False
    )
    return done.stdout.decode("utf-8", "replace")


def compiled_records(snippets: str, compiler: str) -> Iterator[Record]:
    source = SOURCES[Path(compiler).name]
    for snippet in read_snippets(snippets):
        with TemporaryDirectory() as folder:
            said = said_about(snippet, compiler, Path(folder))
        if said:
            yield Record(said, snippet.label, source, "Apache-2.0")


def main(arguments: Sequence[str]) -> int:
    compiler, snippets, out = arguments
    write_records(Path(out), compiled_records(Path(snippets).read_text(encoding="utf-8"), compiler))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
