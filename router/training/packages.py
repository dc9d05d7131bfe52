"""Prompts out of what a Linux machine's packages hold under a licence that lets us: excerpts of headers and manuals.

python -m router.training.packages router/data/corpus/packages.jsonl
"""

import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from router.training.records import Record, write_records

EXCERPT_BYTES = 900
PER_FILE = 2
LLVM = Path("/usr/lib/llvm-14/include/llvm")
CMAKE = Path("/usr/share/cmake-3.25/Help")
PYTHON = Path(sysconfig.get_path("stdlib"))


@dataclass(frozen=True, slots=True)
class Shelf:
    label: str
    source: str
    licence: str
    root: Path
    files: tuple[str, ...]


def _llvm(label: str, *files: str) -> Shelf:
    return Shelf(label, "llvm-headers", "Apache-2.0 WITH LLVM-exception", LLVM, files)


SHELVES = (
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
    Shelf("build", "cmake-help", "BSD-3-Clause", CMAKE, (
        "command/add_library.rst", "command/target_link_libraries.rst", "command/find_package.rst",
        "command/install.rst", "command/try_compile.rst", "command/project.rst", "command/configure_file.rst",
        "command/target_precompile_headers.rst", "command/add_custom_command.rst", "module/ExternalProject.rst",
        "manual/cmake-toolchains.7.rst", "prop_tgt/POSITION_INDEPENDENT_CODE.rst")),
    Shelf("reject", "python-library", "PSF-2.0", PYTHON, (
        "argparse.py", "asyncio/tasks.py", "calendar.py", "collections/__init__.py", "csv.py", "dataclasses.py",
        "heapq.py", "threading.py", "sqlite3/dump.py", "tempfile.py", "socketserver.py", "unittest/case.py")),
)  # fmt: skip


def excerpts(text: str) -> list[str]:
    """Whole paragraphs out of a file's inside, past its licence header and includes."""
    paragraphs = [p for p in re.split(r"\n\s*\n", text) if len(p) > 80][4:]
    step = max(1, len(paragraphs) // PER_FILE)
    return ["\n\n".join(paragraphs[at : at + 3])[:EXCERPT_BYTES] for at in range(0, len(paragraphs), step)][:PER_FILE]


def package_records(shelves: Sequence[Shelf] = SHELVES) -> Iterator[Record]:
    for shelf in shelves:
        for name in shelf.files:
            path = shelf.root / name
            if path.is_file():
                for text in excerpts(path.read_text(encoding="utf-8", errors="replace")):
                    yield Record(text, shelf.label, shelf.source, shelf.licence, is_prompt=False)


def main(arguments: Sequence[str]) -> int:
    (out,) = arguments
    write_records(Path(out), package_records())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
