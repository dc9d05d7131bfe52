"""A router's process: on cores of its own, and paused while another one is measured."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.peers.server import ServerProcess, tree


@contextmanager
def pinned(cores: set[int]) -> Iterator[None]:
    """Whoever is started meanwhile stays on these cores, with all its threads and children."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class RouterProcess(ServerProcess):
    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path, cores: set[int]) -> None:
        with pinned(cores):
            super().__init__(name, command, env, log)

    def memory(self) -> int:
        """Bytes, each shared page shared out among those who share it."""
        return sum(map(_pss_of, tree(self.pid)))


def _pss_of(pid: int) -> int:
    found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"/proc/{pid}/smaps_rollup tells no Pss")
    return int(found[1]) * 1024
