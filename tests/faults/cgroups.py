"""Less CPU or memory than a process would like to have."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

_ROOT = Path("/sys/fs/cgroup")
_PERIOD = 100_000
_numbers = count()


@dataclass(frozen=True, slots=True)
class Cgroup:
    """What is in its folder shares what it may have."""

    folder: Path
    is_v2: bool

    def allow_cpu(self, share: float | None) -> None:
        """Of one core; None for as much as there is."""
        quota = None if share is None else round(share * _PERIOD)
        if self.is_v2:
            (self.folder / "cpu.max").write_text(f"{'max' if quota is None else quota} {_PERIOD}")
        else:
            (self.folder / "cpu.cfs_quota_us").write_text(str(-1 if quota is None else quota))

    def allow_memory(self, num_bytes: int) -> None:
        name = "memory.max" if self.is_v2 else "memory.limit_in_bytes"
        (self.folder / name).write_text(str(num_bytes))

    @property
    def memory(self) -> int:
        """Bytes that are taken."""
        return int((self.folder / ("memory.current" if self.is_v2 else "memory.usage_in_bytes")).read_text())

    @property
    def num_killed(self) -> int:
        """For want of memory."""
        name = "memory.events" if self.is_v2 else "memory.oom_control"
        counts = dict(line.split() for line in (self.folder / name).read_text().splitlines())
        return int(counts["oom_kill"])


@contextmanager
def cgroup(controller: str) -> Iterator[Cgroup]:
    """With `controller`, cpu or memory. Empty by the end, and gone. Skips where none can be made."""
    try:
        made = _made(controller)
    except OSError as error:
        pytest.skip(f"no cgroup can be made: {error}")
    try:
        yield made
    finally:
        _remove(made.folder)


def want_of_cgroups(*controllers: str) -> str:
    """Why none can be made here; empty if they can."""
    try:
        for controller in controllers:
            _remove(_made(controller).folder)
    except OSError as error:
        return f"no cgroup can be made: {error}"
    return ""


def _made(controller: str) -> Cgroup:
    is_v2 = (_ROOT / "cgroup.controllers").exists()
    folder = (_ROOT if is_v2 else _ROOT / controller) / f"octet-faults-{os.getpid()}-{next(_numbers)}"
    if is_v2:
        (_ROOT / "cgroup.subtree_control").write_text(f"+{controller}")
    folder.mkdir()
    return Cgroup(folder, is_v2)


def _remove(folder: Path) -> None:
    end = time.monotonic() + 10
    while True:
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return
