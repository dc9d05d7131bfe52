"""The memory guard: refuses new work when a process approaches the memory limit of its cgroups."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path

from octet.clock import Clock
from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2 as wire

_log = logging.getLogger(__name__)

MEMORY_LIMITS_VARIABLE = "OCTET_MEMORY_LIMITS"  # two shares of the limit, such as 0.92,0.95, or off
TIGHT, FULL = 0.92, 0.95
"""Shares of the limit. Above the first, deferrable work is refused: shadows by a replica, requests below the default
priority by a router. Above the second, all new work is refused."""
_POLL_SECONDS = 1.0
_MEMORY_RETRY_SECONDS = 2.0
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_UNLIMITED = 1 << 60  # version 1 reports a larger number if there is no limit


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    used: int  # bytes, without the page cache
    limit: int

    @property
    def share(self) -> float:
        return self.used / self.limit


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    tight: float = TIGHT
    full: float = FULL

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "MemoryLimits":
        """Raises ValueError for an invalid variable."""
        given = environment.get(MEMORY_LIMITS_VARIABLE, "").strip()
        if not given:
            return cls()
        if given == "off":
            return cls(inf, inf)
        try:
            tight, full = (float(each) for each in given.split(","))
        except ValueError:
            tight = full = 0.0
        if not 0 < tight <= full <= 1:
            shape = f"off, or two shares with the smaller first (such as {TIGHT},{FULL})"
            raise ValueError(f"{MEMORY_LIMITS_VARIABLE} must be {shape}, got {given!r}")
        return cls(tight, full)


class MemoryGuard:
    def __init__(
        self, read: Callable[[], MemoryUsage | None], clock: Clock, limits: MemoryLimits | None = None
    ) -> None:
        self._read = read
        self._clock = clock
        self._limits = limits or MemoryLimits()
        self._read_at = -inf
        self._usage: MemoryUsage | None = None

    @property
    def share(self) -> float | None:
        """Return the used share of the limit; None if there is no limit."""
        usage = self._current()
        return None if usage is None else usage.share

    def warn(self) -> None:
        """Warn at the start of a process if new work would already be refused."""
        usage, tight = self._current(), self._limits.tight
        if usage is not None and usage.share >= tight:
            message = "%.0f%% of the memory limit of %d MiB is used: new work is refused above %.0f%%"
            _log.warning(message, 100 * usage.share, usage.limit >> 20, 100 * tight)

    def check(self, *, can_wait: bool) -> None:
        """Refuse new work if too much memory is used; work that `can_wait` is refused earlier. Raises Refusal."""
        usage = self._current()
        if usage is None or usage.share < self._limits.tight:
            return
        if usage.share >= self._limits.full or can_wait:
            raise self._refusal(usage)

    def _current(self) -> MemoryUsage | None:
        now = self._clock.now()
        if now - self._read_at >= _POLL_SECONDS:
            self._read_at, self._usage = now, self._read()
        return self._usage

    def _refusal(self, usage: MemoryUsage) -> Refusal:
        mib = usage.limit >> 20
        return Refusal(
            wire.ERROR_REASON_QUEUE_FULL,
            f"this process uses {usage.share:.0%} of its memory limit of {mib:,} MiB",
            field="memory",
            limit=f"less than {self._limits.tight:.0%} of {mib:,} MiB; {self._limits.full:.0%} for urgent requests",
            value=f"{usage.share:.0%}",
            retry_after=_MEMORY_RETRY_SECONDS,
        )


@dataclass(frozen=True, slots=True)
class _CgroupVersion:
    used: str
    limit: str
    page_cache: tuple[str, str]  # lines of memory.stat
    events: str  # the file that counts kills


_V1 = _CgroupVersion(
    "memory.usage_in_bytes", "memory.limit_in_bytes", ("total_inactive_file", "total_active_file"), "memory.oom_control"
)
_V2 = _CgroupVersion("memory.current", "memory.max", ("inactive_file", "active_file"), "memory.events")


def memory_reader(own: Path = _OWN_CGROUP, cgroups: Path = _CGROUPS) -> Callable[[], MemoryUsage | None]:
    """Return a function that returns the usage of the cgroup closest to its limit, or None if no cgroup has a limit."""
    found = [*_find_cgroups(own, cgroups)]

    def read() -> MemoryUsage | None:
        usages = (usage for folder, version in found if (usage := _read_usage(folder, version)))
        return max(usages, key=lambda usage: usage.share, default=None)

    return read


def count_memory_kills(own: Path = _OWN_CGROUP, cgroups: Path = _CGROUPS) -> int:
    """Return how many processes of this process's cgroup the kernel has killed for lack of memory; 0 if unknown."""
    for folder, version in _find_cgroups(own, cgroups):
        with suppress(OSError, ValueError):
            lines = (folder / version.events).read_text().splitlines()
            return int(dict(line.split(maxsplit=1) for line in lines).get("oom_kill", 0))
    return 0


class MemoryKills:
    """Attributes each kill for lack of memory to at most one process, because the kernel only counts them."""

    def __init__(self, count: Callable[[], int] = count_memory_kills) -> None:
        self.count = count
        self._num_attributed = count()

    def attribute(self, num_before: int) -> bool:
        """Return whether the kernel killed a process that was ended by SIGKILL. `num_before` is the count at the
        process's start."""
        is_memory_kill = self.count() > max(num_before, self._num_attributed)
        self._num_attributed += is_memory_kill
        return is_memory_kill


def _find_cgroups(own: Path, cgroups: Path) -> Iterator[tuple[Path, _CgroupVersion]]:
    """Yield the process's own cgroup and its parents; a container may see only the root."""
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
    """Return the usage; None if there is no limit or the cgroup no longer exists."""
    try:
        limit = (folder / version.limit).read_text().strip()
        if limit == "max" or int(limit) >= _UNLIMITED:
            return None
        used = int((folder / version.used).read_text())
        stat = dict(line.split(maxsplit=1) for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:
        return None
    return MemoryUsage(max(0, used - sum(int(stat.get(name, 0)) for name in version.page_cache)), max(1, int(limit)))
