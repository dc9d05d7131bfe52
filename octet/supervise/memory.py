"""How much memory processes really take: what they share is counted once."""

from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")


def pss_of(pids: Iterable[int]) -> int | None:
    """Bytes, with everything they have started; None where the kernel does not tell."""
    try:
        return sum(_pss(pid) for pid in _with_children(pids))
    except OSError:
        return None


def _with_children(pids: Iterable[int]) -> set[int]:
    parents = {int(path.name): _parent(path) for path in _PROC.iterdir() if path.name.isdecimal()}
    family = set(pids)
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return family


def _parent(process: Path) -> int | None:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended meanwhile
        return None


def _pss(pid: int) -> int:
    for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
