"""Training corpora: tool output on broken C++ snippets, and excerpts from headers and manuals of installed packages.

python -m bench.classifier_corpus compiler g++ router/data/snippets-gcc.txt router/data/corpus/gcc.jsonl
python -m bench.classifier_corpus packages router/data/corpus/packages.jsonl
"""

import json
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from router.routing.training.records import LabelledPrompt, write_records

_SOURCES = {"g++": "gcc", "clang++": "clang"}
_GDB = ("gdb", "-batch", "-nx", "-ex", "set debuginfod enabled off", "-ex", "run", "-ex", "bt 12", "--args")
_RUNNERS: dict[str, tuple[str, ...]] = {"run": (), "gdb": _GDB}
_PACKAGES = Path(__file__).parents[1] / "router/data/packages.json"
_OUTPUT_BYTES, _EXCERPT_BYTES, _PER_FILE = 3000, 900, 2


class Snippet(NamedTuple):
    label: str
    act: str  # compile, link, run or gdb: the step that is expected to fail
    flags: tuple[str, ...]
    code: str


class PackageFiles(NamedTuple):
    label: str
    source: str
    licence: str
    root: Path
    files: Sequence[str]


def read_snippets(text: str) -> Iterator[Snippet]:
    for part in text.split("//== ")[1:]:
        head, _, code = part.partition("\n")
        label, act, *flags = head.split()
        yield Snippet(label, act, tuple(flags), code)


def compiled_records(snippets: str, compiler: str) -> Iterator[LabelledPrompt]:
    for snippet in read_snippets(snippets):
        with TemporaryDirectory() as folder:
            output = _run_tools(snippet, compiler, Path(folder))
        if output:
            yield LabelledPrompt(output, snippet.label, _SOURCES[Path(compiler).name], "Apache-2.0")


def _run_tools(snippet: Snippet, compiler: str, folder: Path) -> str:
    """Compile the snippet, and run it if its `act` says so. Return the last output; empty if it could not be run."""
    (folder / "main.cpp").write_text(snippet.code, encoding="utf-8")
    only = ["-fsyntax-only"] if snippet.act == "compile" else ["-g", "-o", "app"]
    output = _run([compiler, "-std=c++20", "-Wall", "main.cpp", *only, *snippet.flags], folder)
    if snippet.act in _RUNNERS:
        output = _run([*_RUNNERS[snippet.act], "./app"], folder) if (folder / "app").exists() else ""
    return output.replace(f"{folder}/", "")[:_OUTPUT_BYTES].strip()


def _run(command: Sequence[str], folder: Path) -> str:
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    done = subprocess.run(command, cwd=folder, stdout=pipe, stderr=both, timeout=60, check=False)  # noqa: S603
    return done.stdout.decode("utf-8", "replace")


def package_records(packages: Sequence[PackageFiles]) -> Iterator[LabelledPrompt]:
    """Yield excerpts of each file, without its first paragraphs (licence and includes). Missing files are left out."""
    for label, source, licence, root, files in packages:
        for path in filter(Path.is_file, (root / name for name in files)):
            text = path.read_text(encoding="utf-8", errors="replace")
            paragraphs = [part for part in re.split(r"\n\s*\n", text) if len(part) > 80][4:]
            starts = range(0, len(paragraphs), max(1, len(paragraphs) // _PER_FILE))
            for start in starts[:_PER_FILE]:
                excerpt = "\n\n".join(paragraphs[start : start + 3])[:_EXCERPT_BYTES]
                yield LabelledPrompt(excerpt, label, source, licence, is_prompt=False)


def main(kind: str, *arguments: str) -> None:
    *inputs, out = arguments
    if kind == "compiler":
        compiler, snippets = inputs
        records = compiled_records(Path(snippets).read_text(encoding="utf-8"), compiler)
    else:
        listed, library = json.loads(_PACKAGES.read_text(encoding="utf-8")), sysconfig.get_path("stdlib")
        records = package_records([PackageFiles(**{**each, "root": Path(each["root"] or library)}) for each in listed])
    write_records(Path(out), records)


if __name__ == "__main__":
    main(*sys.argv[1:])
