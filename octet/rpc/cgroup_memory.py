"""How much memory the kernel lets this process and its neighbours have, and how much of it is taken."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_UNLIMITED = 1 << 60
"""What version 1 says where there is no limit is above this."""


@dataclass(frozen=True, slots=True)
class Memory:
    used: int
    """Bytes, without files that the kernel can read again."""
    limit: int

    @property
    def share(self) -> float:
        return self.used / self.limit


@dataclass(frozen=True, slots=True)
class _Version:
    used: str
    limit: str
    files: tuple[str, str]
    """Lines of memory.stat."""


_V1 = _Version("memory.usage_in_bytes", "memory.limit_in_bytes", ("total_inactive_file", "total_active_file"))
_V2 = _Version("memory.current", "memory.max", ("inactive_file", "active_file"))


def memory_reader(own: Path = _OWN, cgroups: Path = _CGROUPS) -> Callable[[], Memory | None]:
    """Reads the tightest of the limits that this process stands under; None where there is none. Which cgroups those
    are is looked up once."""
    found = [*_found(own, cgroups)]
    return lambda: max((memory for place in found if (memory := _read(*place))), key=_share, default=None)


def _share(memory: Memory) -> float:
    return memory.share


def _found(own: Path, cgroups: Path) -> Iterator[tuple[Path, _Version]]:
    """Folders from its own cgroup up. In a container the path may be the host's, and only its top is to be seen."""
    try:
        text = own.read_text()
    except OSError:  # not Linux
        return
    for version, pattern, top in (
        (_V1, r"^\d+:(?:[^:]*,)?memory(?:,[^:]*)?:/(.*)$", cgroups / "memory"),
        (_V2, r"^0::/(.*)$", cgroups),
    ):
        for path in re.findall(pattern, text, re.MULTILINE):
            folder = top / path
            for place in (folder, *folder.parents):
                if place.is_relative_to(top) and (place / version.limit).exists():
                    yield place, version


def _read(folder: Path, version: _Version) -> Memory | None:
    """None without a limit, and for a cgroup that is gone."""
    try:
        limit = (folder / version.limit).read_text().strip()
        if limit == "max" or int(limit) >= _UNLIMITED:
            return None
        used = int((folder / version.used).read_text())
        stat = dict(line.split(maxsplit=1) for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:
        return None
    return Memory(max(0, used - sum(int(stat.get(name, 0)) for name in version.files)), max(1, int(limit)))
