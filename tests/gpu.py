"""Run the tests of GPUs on a machine with one: `python -m tests.gpu`. They need only what the engine needs, and pytest.

Most of their time goes into compiling kernels, so several processes share the tests. Those that fill the card follow.
"""

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from octet.cli.arguments import parse_positive

ROOT = Path(__file__).parents[1]
ALONE = ("tests/native/test_gpu_pool.py",)
MODULES = ("tests/native/test_host_blocks.py", *(f"tests/{room}/test_gpu_*.py" for room in ("ops", "native")))


def modules() -> list[str]:
    found = (path.relative_to(ROOT).as_posix() for pattern in MODULES for path in sorted(ROOT.glob(pattern)))
    return [path for path in found if path not in ALONE]


def run_tests(names: list[str], *options: str, limit: float) -> subprocess.CompletedProcess[str]:
    """Run pytest without the project's settings, which name plugins that a GPU machine may not have."""
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", ".", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *options, *names],
        cwd=ROOT,
        env=os.environ | {"OCTET_TEST_DEVICE": "cuda"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit,
    )


def collect(names: list[str]) -> list[str]:
    listed = run_tests(names, "--collect-only", limit=300)
    tests = [line for line in listed.stdout.splitlines() if "::" in line]
    if listed.returncode or not tests:
        sys.exit(f"the tests cannot be collected:\n{listed.stdout}")
    return tests


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument(
        "--jobs", type=parse_positive, default=os.cpu_count() or 1, help="processes (default: one a core)"
    )
    parser.add_argument("--limit", type=parse_positive, default=3600, help="seconds for each process (default: 3600)")
    parser.add_argument("-k", default="", help="run only tests whose name matches, as pytest does")
    options = parser.parse_args()
    tests = collect(modules())
    shares = [share for first in range(options.jobs) if (share := tests[first :: options.jobs])]
    run = partial(run_tests, limit=options.limit)
    failed = 0
    with ThreadPoolExecutor(len(shares)) as pool:
        for ran in pool.map(lambda share: run(share, "-k", options.k), shares):
            failed += report(ran)
    failed += report(run([*ALONE], "-k", options.k))
    return 1 if failed else 0


def report(ran: subprocess.CompletedProcess[str]) -> bool:
    """Print how a process ended, and all it said if a test failed. Return whether one did."""
    failed = ran.returncode not in (0, 5)  # 5: no test was chosen
    print(ran.stdout if failed else ran.stdout.strip().rpartition("\n")[2], flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
