"""Processes of backends."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import bench
from bench.router_site import SiteFailed

ROOT = Path(bench.__path__[0]).resolve().parent
"""Where this project's packages are: whatever is started is of the same state as whoever starts it."""


@contextmanager
def backends(module: str, number: int) -> Iterator[list[int]]:
    """Their ports."""
    command = [sys.executable, "-m", f"bench.router_peers.{module}", str(number)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        try:
            line = process.stdout.readline() if process.stdout else ""
            if not line.startswith("ready on"):
                raise SiteFailed(f"the backends of {module} did not start")
            yield [int(port) for port in line.split()[2:]]
        finally:
            process.terminate()
