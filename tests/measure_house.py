"""Measure the size and structure of the code base: `python -m tests.measure_house [--root CHECKOUT] [--json]`.

Counts the product's files (every .py file outside tests/ and bench/ except generated protobuf code), their lines and
folders, the class names that several files define, the files with a single importer, and the files that a request runs
through. The request is a real gRPC call that names its specialist. It goes to `octet serve` with two sim specialists,
and `sys.setprofile` traces every process.
"""

import argparse
import ast
import json
import mmap
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

LIMITS = {
    "files": 420,
    "lines": 68_000,
    "folders": 45,
    "colliding_class_names": 10,
    "longest_file": 500,
    "request_files": 70,
    "request_spine": 20,
}
_NOT_PRODUCT = ("tests", "bench")
_ENSEMBLE = """
name: two
dispatch: {hang_seconds: 60, heartbeat_seconds: 0.25}
specialists:
  sql: {engine: sim, describe: "Databases and SQL.", examples: ["write a SELECT with a join", "add an index"]}
  shell: {engine: sim, describe: "Shell scripts.", examples: ["loop over files in bash", "quote this variable"]}
"""
_START_SECONDS = 120.0

_REQUESTS = 40
_WRITE = 255

# Loaded by every process of the ensemble through `sitecustomize`. The flag byte is the number of the request that is
# being traced, 0 for none, and 255 when the processes must write their records.
_TRACER = """
import json, mmap, os, sys, threading
_root = os.environ["TRACE_ROOT"] + os.sep
_file = open(os.environ["TRACE_FLAG"], "r+b")
_flag = mmap.mmap(_file.fileno(), 1)
_seen, _stacks, _written, _names = {}, {}, [False], {}

def _product(code):
    name = code.co_filename
    known = _names.get(name)
    if known is None:
        is_product = name.startswith(_root) and "_pb2" not in name
        known = _names[name] = name[len(_root):] if is_product else ""
        if known.startswith(("tests", "bench", ".venv")):
            known = _names[name] = ""
    return known

def _write():
    path = os.path.join(os.environ["TRACE_OUT"], f"{os.getpid()}.json")
    with open(path + ".new", "w") as out:
        seen = {number: sorted(names) for number, names in _seen.items()}
        stacks = [[number, thread, stack] for (number, thread), stack in _stacks.items()]
        json.dump({"seen": seen, "stacks": stacks}, out)
    os.replace(path + ".new", path)

def _trace(frame, event, argument):
    number = _flag[0]
    if number == 0 or event != "call":
        return
    if number == 255:
        if not _written[0]:
            _written[0] = True
            _write()
        return
    name = _product(frame.f_code)
    if not name:
        return
    _seen.setdefault(number, set()).add(name)
    stack, each = [], frame
    while each is not None:
        found = _product(each.f_code)
        if found and found not in stack:
            stack.append(found)
        each = each.f_back
    key = number, threading.get_ident()
    if len(stack) > len(_stacks.get(key, ())):
        _stacks[key] = stack[::-1]

sys.setprofile(_trace)
threading.setprofile(_trace)
"""


@dataclass(frozen=True)
class House:
    files: int
    lines: int
    folders: int
    colliding_class_names: int
    longest_file: int
    files_under_30_lines: int
    files_with_one_importer: int
    request_files: int = 0
    request_folders: int = 0
    request_spine: int = 0


def product_files(root: Path) -> list[Path]:
    command = ["git", "-C", str(root), "ls-files", "*.py"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    paths = [Path(line) for line in listed.splitlines()]
    return [path for path in paths if path.parts[0] not in _NOT_PRODUCT and not path.name.endswith("_pb2.py")]


def colliding_classes(root: Path, paths: list[Path]) -> dict[str, list[str]]:
    """Return the class names that more than one product file defines at its top level."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        for node in ast.parse((root / path).read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path))
    return {name: files for name, files in sorted(found.items()) if len(files) > 1}


def count_importers(root: Path, paths: list[Path]) -> dict[str, int]:
    """Return how many product files import each module."""
    modules = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths}
    importers: dict[str, set[str]] = {module: set() for module in modules}
    for path in paths:
        for node in ast.walk(ast.parse((root / path).read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
            for name in names:
                if name in importers:
                    importers[name].add(str(path))
    return {module: len(users) for module, users in importers.items()}


def measure_files(root: Path) -> House:
    paths = product_files(root)
    lengths = [(root / path).read_text().count("\n") for path in paths]
    named = [length for path, length in zip(paths, lengths, strict=True) if path.name != "__init__.py"]
    return House(
        files=len(paths),
        lines=sum(lengths),
        folders=len({path.parent for path in paths}),
        colliding_class_names=len(colliding_classes(root, paths)),
        longest_file=max(lengths),
        files_under_30_lines=sum(length < 30 for length in named),
        files_with_one_importer=sum(count == 1 for count in count_importers(root, paths).values()),
    )


@contextmanager
def _serving(root: Path, folder: Path, flag: Path) -> Iterator[str]:
    """Yield the address of a traced ensemble."""
    (folder / "sitecustomize.py").write_text(_TRACER)
    (folder / "two.yaml").write_text(_ENSEMBLE)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{folder}{os.pathsep}{root}",
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_RUNTIME_DIR": "",
        "TRACE_ROOT": str(root),
        "TRACE_FLAG": str(flag),
        "TRACE_OUT": str(folder),
    }
    command = [sys.executable, "-c", "import sys; from octet.cli import main; sys.exit(main())", "serve"]
    out = folder / "out"
    with out.open("w") as stdout:
        process = subprocess.Popen(
            [*command, str(folder / "two.yaml"), "--port", "0", "--no-http"],
            cwd=folder,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + _START_SECONDS
        while not (ready := re.search(r"octet ready on (\S+)", out.read_text())):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"octet serve did not start:\n{out.read_text()[-2000:]}")
            time.sleep(0.1)
        yield ready[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def trace_request(root: Path) -> tuple[set[str], set[str]]:
    """Return the product files that a request runs through, and those on its call spine.

    Many requests are traced. A file counts only if every request called into it, which excludes periodic work. For the
    spine, each thread of the router and the replica contributes the files on the deepest call stack of its median
    request.
    """
    sys.path.insert(0, str(root))
    from octet import Client

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flag = folder / "flag"
        flag.write_bytes(b"\0")
        with flag.open("r+b") as file, mmap.mmap(file.fileno(), 1) as shared, _serving(root, folder, flag) as address:
            with Client(address) as client:
                for number in (0, 0, *range(1, _REQUESTS + 1)):
                    shared[0] = number
                    with client.stream("SELECT 1", force=["sql"], max_tokens=8) as answer:
                        for _ in answer:
                            pass
                    shared[0] = 0
            shared[0] = _WRITE
            time.sleep(3)  # Every process has a heartbeat, and writes at the next traced call.
        reports = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    numbers = [str(number) for number in range(1, _REQUESTS + 1)]
    seen: set[str] = set()
    spine: set[str] = set()
    for report in reports:
        called = [set(report["seen"].get(number, ())) for number in numbers]
        always = set.intersection(*called)
        seen |= always
        stacks: dict[int, list[list[str]]] = defaultdict(list)
        for _, thread, stack in report["stacks"]:
            stacks[thread].append([each for each in stack if each in always])
        for found in stacks.values():
            if len(found) == _REQUESTS:
                spine.update(sorted(found, key=len)[len(found) // 2])
    return seen, spine


def measure(root: Path) -> tuple[House, set[str], set[str]]:
    seen, spine = trace_request(root)
    traced = {
        "request_files": len(seen),
        "request_folders": len({str(Path(name).parent) for name in seen}),
        "request_spine": len(spine),
    }
    return House(**{**asdict(measure_files(root)), **traced}), seen, spine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--root", type=Path, default=Path(__file__).resolve().parents[1], help="the checkout to measure"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--list", action="store_true", help="also print the files of the request and the collisions")
    options = parser.parse_args()
    root: Path = options.root.resolve()
    measured, seen, spine = measure(root)
    house = asdict(measured)
    if options.json:
        print(json.dumps(house, indent=2))
        return 0
    over = 0
    for name, value in house.items():
        limit = LIMITS.get(name)
        over += limit is not None and value > limit
        print(f"{name.replace('_', ' '):26}{value:>8,}" + (f"   at most {limit:,}" if limit is not None else ""))
    if options.list:
        print("\nrequest:", *sorted(seen), sep="\n  ")
        print("\nspine:", *sorted(spine), sep="\n  ")
        print("\ncollisions:")
        for name, files in colliding_classes(root, product_files(root)).items():
            print(f"  {name}: {', '.join(files)}")
    return int(over > 0)


if __name__ == "__main__":
    sys.exit(main())
