"""Processes of backends, and ports for whoever comes before them."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import bench
from bench.router_peers.http_backend import HOST
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


def free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in taken:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in taken]
