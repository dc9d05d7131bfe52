"""Training corpora: tool output on broken C++ snippets, and excerpts from headers and manuals of installed packages.

python -m bench.classifier_corpus compiler g++ router/data/snippets-gcc.txt router/data/corpus/gcc.jsonl
python -m bench.classifier_corpus packages router/data/corpus/packages.jsonl
"""

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
    """The output of the last tool, without the name of its folder; empty if there was no program to run."""
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
LLVM = Path("/usr/lib/llvm-14/include/llvm")
CMAKE = Path("/usr/share/cmake-3.25/Help")
PYTHON = Path(sysconfig.get_path("stdlib"))


@dataclass(frozen=True, slots=True)
class PackageFiles:
    label: str
    source: str
    licence: str
    root: Path
    files: tuple[str, ...]


def _llvm(label: str, *files: str) -> PackageFiles:
    return PackageFiles(label, "llvm-headers", "Apache-2.0 WITH LLVM-exception", LLVM, files)


PACKAGES = (
    _llvm("template", "ADT/STLForwardCompat.h", "Support/type_traits.h", "Support/Casting.h", "ADT/FunctionExtras.h",
          "ADT/TypeSwitch.h", "ADT/PointerSumType.h"),
    _llvm("stl", "ADT/StringRef.h", "ADT/iterator_range.h", "ADT/DenseSet.h", "ADT/StringExtras.h", "ADT/SetVector.h",
          "ADT/MapVector.h"),
    _llvm("algo", "ADT/SCCIterator.h", "ADT/DepthFirstIterator.h", "ADT/EquivalenceClasses.h", "ADT/edit_distance.h",
          "ADT/PostOrderIterator.h", "Support/SuffixTree.h", "ADT/CombinationGenerator.h"),
    _llvm("memory", "Support/Allocator.h", "Support/Recycler.h", "ADT/IntrusiveRefCntPtr.h", "Support/AlignOf.h",
          "Support/Alignment.h", "Support/MemAlloc.h"),
    _llvm("concurrency", "Support/Threading.h", "Support/ThreadPool.h", "Support/Mutex.h", "Support/RWMutex.h",
          "Support/Parallel.h", "Support/TaskQueue.h"),
    _llvm("systems", "Support/Process.h", "Support/Program.h", "Support/Signals.h", "Support/FileSystem.h",
          "Support/Memory.h", "Support/LockFileManager.h"),
    PackageFiles("build", "cmake-help", "BSD-3-Clause", CMAKE, (
        "command/add_library.rst", "command/target_link_libraries.rst", "command/find_package.rst",
        "command/install.rst", "command/try_compile.rst", "command/project.rst", "command/configure_file.rst",
        "command/target_precompile_headers.rst", "command/add_custom_command.rst", "module/ExternalProject.rst",
        "manual/cmake-toolchains.7.rst", "prop_tgt/POSITION_INDEPENDENT_CODE.rst")),
    PackageFiles("reject", "python-library", "PSF-2.0", PYTHON, (
        "argparse.py", "asyncio/tasks.py", "calendar.py", "collections/__init__.py", "csv.py", "dataclasses.py",
        "heapq.py", "threading.py", "sqlite3/dump.py", "tempfile.py", "socketserver.py", "unittest/case.py")),
)  # fmt: skip


def excerpts(text: str) -> list[str]:
    """Whole paragraphs after the licence header and the includes."""
    paragraphs = [p for p in re.split(r"\n\s*\n", text) if len(p) > 80][4:]
    step = max(1, len(paragraphs) // PER_FILE)
    return ["\n\n".join(paragraphs[at : at + 3])[:EXCERPT_BYTES] for at in range(0, len(paragraphs), step)][:PER_FILE]


def package_records(shelves: Sequence[PackageFiles] = PACKAGES) -> Iterator[LabelledPrompt]:
    for shelf in shelves:
        for name in shelf.files:
            path = shelf.root / name
            if path.is_file():
                for text in excerpts(path.read_text(encoding="utf-8", errors="replace")):
                    yield LabelledPrompt(text, shelf.label, shelf.source, shelf.licence, is_prompt=False)


def main(arguments: Sequence[str]) -> int:
    kind, *rest = arguments
    if kind == "compiler":
        compiler, snippets, out = rest
        records = compiled_records(Path(snippets).read_text(encoding="utf-8"), compiler)
    else:
        (out,) = rest
        records = package_records()
    write_records(Path(out), records)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
