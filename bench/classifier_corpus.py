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
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from router.routing.training.records import LabelledPrompt, write_records

SNIPPET_MARK = "//== "
MAX_OUTPUT_BYTES = 3000
TOOL_SECONDS = 60
SOURCES = {"g++": "gcc", "clang++": "clang"}
GDB = ("gdb", "-batch", "-nx", "-ex", "set debuginfod enabled off", "-ex", "run", "-ex", "bt 12", "--args")


@dataclass(frozen=True, slots=True)
class Snippet:
    label: str
    act: str  # compile, link, run or gdb: the step that is expected to fail
    flags: tuple[str, ...]
    code: str


def read_snippets(text: str) -> Iterator[Snippet]:
    for part in text.split(SNIPPET_MARK)[1:]:
        head, _, code = part.partition("\n")
        label, act, *flags = head.split()
        yield Snippet(label, act, tuple(flags), code)


def tool_run(snippet: Snippet, compiler: str, folder: Path) -> str:
    """Return the output of the last tool, without the name of its folder; empty if there was no program to run."""
    (folder / "main.cpp").write_text(snippet.code, encoding="utf-8")
    only = ["-fsyntax-only"] if snippet.act == "compile" else ["-g", "-o", "app"]
    output = _run([compiler, "-std=c++20", "-Wall", "main.cpp", *only, *snippet.flags], folder)
    if snippet.act in ("run", "gdb"):
        runner = GDB if snippet.act == "gdb" else ()
        output = _run([*runner, "./app"], folder) if (folder / "app").exists() else ""
    return output.replace(f"{folder}/", "")[:MAX_OUTPUT_BYTES].strip()


def _run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(  # noqa: S603
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TOOL_SECONDS, check=False
    )
    return done.stdout.decode("utf-8", "replace")


def compiled_records(snippets: str, compiler: str) -> Iterator[LabelledPrompt]:
    source = SOURCES[Path(compiler).name]
    for snippet in read_snippets(snippets):
        with TemporaryDirectory() as folder:
            output = tool_run(snippet, compiler, Path(folder))
        if output:
            yield LabelledPrompt(output, snippet.label, source, "Apache-2.0")


EXCERPT_BYTES = 900
PER_FILE = 2
PACKAGES = Path(__file__).parents[1] / "router" / "data" / "packages.json"


@dataclass(frozen=True, slots=True)
class PackageFiles:
    label: str
    source: str
    licence: str
    root: Path
    files: tuple[str, ...]


def read_packages(path: Path) -> list[PackageFiles]:
    """Read the list. An empty root is that of Python's standard library."""
    stdlib = sysconfig.get_path("stdlib")
    return [
        PackageFiles(**{**fields, "root": Path(fields["root"] or stdlib)})
        for fields in json.loads(path.read_text(encoding="utf-8"))
    ]


def excerpts(text: str) -> list[str]:
    """Return whole paragraphs after the licence header and the includes."""
    paragraphs = [p for p in re.split(r"\n\s*\n", text) if len(p) > 80][4:]
    step = max(1, len(paragraphs) // PER_FILE)
    return ["\n\n".join(paragraphs[at : at + 3])[:EXCERPT_BYTES] for at in range(0, len(paragraphs), step)][:PER_FILE]


def package_records(packages: Sequence[PackageFiles]) -> Iterator[LabelledPrompt]:
    for package in packages:
        for name in package.files:
            path = package.root / name
            if path.is_file():
                for text in excerpts(path.read_text(encoding="utf-8", errors="replace")):
                    yield LabelledPrompt(text, package.label, package.source, package.licence, is_prompt=False)


def main(arguments: Sequence[str]) -> int:
    kind, *rest = arguments
    if kind == "compiler":
        compiler, snippets, out = rest
        records = compiled_records(Path(snippets).read_text(encoding="utf-8"), compiler)
    else:
        (out,) = rest
        records = package_records(read_packages(PACKAGES))
    write_records(Path(out), records)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
