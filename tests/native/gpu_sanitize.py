"""A few steps of random load under compute-sanitizer: `python -m tests.native.gpu_sanitize`.

Every tensor has memory of its own, so that an access beyond its end is seen, and in place of CUDA graphs the launches
that they would hold are repeated one by one.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from tests.native.gpu_soak import LARGE, SMALL, soak

TOOLS = ("memcheck", "racecheck")
TOOL, USUAL_PLACE = "compute-sanitizer", "/usr/local/cuda/bin"
FOUND = 9  # the exit code if the tool found errors
_SUMMARY = re.compile(r"(ERROR|RACECHECK) SUMMARY: (\d+)")
_MOST_LINES = 40


class RecordedLaunches:
    """Stands in for a CUDA graph."""

    def __init__(self) -> None:
        self.launches: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]] = []

    def replay(self) -> None:
        for launch, arguments, options in self.launches:
            launch(*arguments, **options)


@contextmanager
def without_graphs() -> Iterator[None]:
    """Meanwhile, graphs are lists of Triton's launches."""
    from triton.runtime.jit import JITFunction

    run, current = JITFunction.run, list[RecordedLaunches]()

    def noted(kernel: Any, *arguments: Any, **options: Any) -> Any:
        for graph in current:
            graph.launches.append((run, (kernel, *arguments), options))
        return run(kernel, *arguments, **options)

    @contextmanager
    def capture(graph: RecordedLaunches, **_: object) -> Iterator[None]:
        current.append(graph)
        try:
            yield
        finally:
            current.remove(graph)

    with ExitStack() as stack:
        stack.enter_context(patch.object(JITFunction, "run", noted))
        stack.enter_context(patch.object(torch.cuda, "CUDAGraph", RecordedLaunches))
        stack.enter_context(patch.object(torch.cuda, "graph", capture))
        yield


def work(device: str, steps: int) -> None:
    if device == "cpu":
        found = soak(device, SMALL, steps=steps)
    else:
        with without_graphs():
            found = soak(device, LARGE, steps=steps)
    print(json.dumps(found))


def check(tool: str, device: str, steps: int, timeout: float) -> dict[str, Any]:
    """Run `work` under the tool. Return the result: "clean", or what was found."""
    program = shutil.which(TOOL) or shutil.which(TOOL, path=USUAL_PLACE)
    if program is None:
        raise FileNotFoundError(f"{TOOL} is neither on the PATH nor in {USUAL_PLACE}")
    command = [program, "--tool", tool, "--error-exitcode", str(FOUND), sys.executable, "-m", __spec__.name]
    command += ["--work", "--device", device, "--steps", str(steps)]
    start = time.monotonic()
    try:
        ended = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False,
            env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, cwd=Path(__file__).parents[2],
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"tool": tool, "result": f"not finished within {timeout:g} s"}
    lines, counts = ended.stdout.splitlines(), [int(count) for _, count in _SUMMARY.findall(ended.stdout)]
    is_clean = ended.returncode == 0 and counts == [0]
    report: dict[str, Any] = {"tool": tool, "result": "clean" if is_clean else "errors", "exit_code": ended.returncode}
    report |= {"errors": sum(counts) if counts else None, "seconds": round(time.monotonic() - start, 1)}
    if is_clean:
        return {**report, "load": json.loads(next(line for line in lines if line.startswith("{")))}
    return {**report, "output": lines[:_MOST_LINES] + lines[_MOST_LINES:][-_MOST_LINES:]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--timeout", type=float, default=150.0, help="seconds for each tool")
    parser.add_argument("--work", action="store_true", help="only the load, without a tool")
    options = parser.parse_args()
    if options.work:
        work(options.device, options.steps)
        return 0
    reports = [check(tool, options.device, options.steps, options.timeout) for tool in options.tools]
    for report in reports:
        print(json.dumps(report, indent=1))
    return int(any(report["result"] != "clean" for report in reports))


if __name__ == "__main__":
    sys.exit(main())
