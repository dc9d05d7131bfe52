"""The memory usage of a process under the limits of its cgroups."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from octet.rpc.handlers import MemoryUsage

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_UNLIMITED = 1 << 60  # version 1 reports a larger number if there is no limit


@dataclass(frozen=True, slots=True)
class _CgroupVersion:
    used: str
    limit: str
    page_cache: tuple[str, str]  # lines of memory.stat


_V1 = _CgroupVersion("memory.usage_in_bytes", "memory.limit_in_bytes", ("total_inactive_file", "total_active_file"))
_V2 = _CgroupVersion("memory.current", "memory.max", ("inactive_file", "active_file"))


def memory_reader(own: Path = _OWN_CGROUP, cgroups: Path = _CGROUPS) -> Callable[[], MemoryUsage | None]:
    """Returns a function that reads the usage under the tightest limit of this process; None without a limit."""
    found = [*_find_cgroups(own, cgroups)]

    def read() -> MemoryUsage | None:
        usages = (usage for folder, version in found if (usage := _read_usage(folder, version)))
        return max(usages, key=lambda usage: usage.share, default=None)

    return read


def _find_cgroups(own: Path, cgroups: Path) -> Iterator[tuple[Path, _CgroupVersion]]:
    """Yields the process's own cgroup and its parents, of which a container may see only the root."""
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
            for each in (folder, *folder.parents):
                if each.is_relative_to(top) and (each / version.limit).exists():
                    yield each, version


def _read_usage(folder: Path, version: _CgroupVersion) -> MemoryUsage | None:
    """Returns None if there is no limit or the cgroup no longer exists."""
    try:
        limit = (folder / version.limit).read_text().strip()
        if limit == "max" or int(limit) >= _UNLIMITED:
            return None
        used = int((folder / version.used).read_text())
        stat = dict(line.split(maxsplit=1) for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:
        return None
    return MemoryUsage(max(0, used - sum(int(stat.get(name, 0)) for name in version.page_cache)), max(1, int(limit)))
