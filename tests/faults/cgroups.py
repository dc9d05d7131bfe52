"""CPU and memory limits for processes."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from tests.faults.commands import want_of
from tests.forbidden import forbidden
from tests.patience import PATIENCE

_ROOT = Path("/sys/fs/cgroup")
_PERIOD = 100_000
_NAME = "octet-faults"
_numbers = count()


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A control group. Its processes share its limits."""

    folder: Path
    is_v2: bool

    def allow_cpu(self, share: float | None) -> None:
        """Limit the group to this share of one core, or remove the limit if it is None."""
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
        """Bytes of memory in use."""
        return int((self.folder / ("memory.current" if self.is_v2 else "memory.usage_in_bytes")).read_text())

    @property
    def num_killed(self) -> int:
        """Number of processes killed for lack of memory."""
        name = "memory.events" if self.is_v2 else "memory.oom_control"
        counts = dict(line.split() for line in (self.folder / name).read_text().splitlines())
        return int(counts["oom_kill"])


@contextmanager
def cgroup(controller: str) -> Iterator[Cgroup]:
    """Yield a new group with the `cpu` or `memory` controller, and remove it afterwards. Skip the test if no group can
    be created."""
    if reason := why_no_cgroups(controller):
        pytest.skip(reason)
    made = _made(controller)
    try:
        yield made
    finally:
        _remove(made.folder)


def why_no_cgroups(*controllers: str) -> str:
    """Return why no group can be created here, or an empty string. Also remove groups that killed runs left behind."""
    if reason := want_of(root=True):
        return reason
    try:
        for controller in controllers:
            _remove_stale(_top(controller))
            _remove(_made(controller).folder)
    except OSError as error:
        # In a container, cgroups are read-only, or the container's own processes prevent subgroups.
        return forbidden(f"no cgroup can be made: {error}")
    return ""


def _made(controller: str) -> Cgroup:
    folder = _top(controller) / f"{_NAME}-{os.getpid()}-{next(_numbers)}"
    if _is_v2():
        (_ROOT / "cgroup.subtree_control").write_text(f"+{controller}")
    folder.mkdir()
    return Cgroup(folder, _is_v2())


def _is_v2() -> bool:
    return (_ROOT / "cgroup.controllers").exists()


def _top(controller: str) -> Path:
    return _ROOT if _is_v2() else _ROOT / controller


def _remove_stale(top: Path) -> None:
    """Remove the groups of test processes that no longer exist."""
    for folder in top.glob(f"{_NAME}-*-*"):
        pid = folder.name.removeprefix(f"{_NAME}-").partition("-")[0]
        if not Path("/proc", pid).exists() and not (folder / "cgroup.procs").read_text():
            _remove(folder)


def _remove(folder: Path) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:  # Another process removed it first.
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return
