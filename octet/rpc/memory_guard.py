"""Turns new work away before the kernel ends the process for want of memory."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

import grpc

from octet.clock import Clock
from octet.rpc.cgroup_memory import Memory
from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2 as wire

_log = logging.getLogger(__name__)
VARIABLE = "OCTET_MEMORY_LIMITS"
"""Of the environment: two shares of the limit, as 0.92,0.95, or off."""
TIGHT, FULL = 0.92, 0.95
"""Of the limit. From the first on whoever can wait is turned away, from the second on everybody: by a replica shadows,
by a router what is less urgent than usual."""
_SECONDS = 1.0
"""Between two looks."""
_RETRY_AFTER = 2.0


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    tight: float = TIGHT
    full: float = FULL

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "MemoryLimits":
        """Raises ValueError."""
        given = environment.get(VARIABLE, "").strip()
        if not given:
            return cls()
        if given == "off":
            return cls(inf, inf)
        try:
            tight, full = (float(each) for each in given.split(","))
        except ValueError:
            tight = full = 0.0
        if not 0 < tight <= full <= 1:
            raise ValueError(f"{VARIABLE} must be off, or two shares as {TIGHT},{FULL}, the smaller first; got {given}")
        return cls(tight, full)


class MemoryGuard:
    def __init__(self, read: Callable[[], Memory | None], clock: Clock, limits: MemoryLimits | None = None) -> None:
        self._read = read
        self._clock = clock
        self._limits = limits or MemoryLimits()
        self._looked = -inf
        self._memory: Memory | None = None

    @property
    def share(self) -> float | None:
        """Of the limit that is taken; None where there is no limit."""
        memory = self._current()
        return None if memory is None else memory.share

    def warn(self) -> None:
        """At the start, where work would be turned away already."""
        memory = self._current()
        if memory is not None and memory.share >= self._limits.tight:
            what = "%.0f%% of the %d MiB of memory it may have are taken: work is turned away from %.0f%% on"
            _log.warning(what, 100 * memory.share, memory.limit >> 20, 100 * self._limits.tight)

    def check(self, *, can_wait: bool) -> None:
        """Raises Refusal. What is under way goes on: it has its memory already."""
        memory = self._current()
        if memory is None or memory.share < self._limits.tight:
            return
        if memory.share >= self._limits.full or can_wait:
            raise memory_full(memory, self._limits)

    def _current(self) -> Memory | None:
        now = self._clock.now()
        if now - self._looked >= _SECONDS:
            self._looked, self._memory = now, self._read()
        return self._memory


def memory_full(memory: Memory, limits: MemoryLimits) -> Refusal:
    mib = memory.limit >> 20
    return Refusal(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        wire.ERROR_REASON_QUEUE_FULL,
        f"{memory.share:.0%} of the {mib:,} MiB of memory that this process may have are taken",
        field="memory",
        limit=f"less than {limits.tight:.0%} of {mib:,} MiB, {limits.full:.0%} for what cannot wait",
        value=f"{memory.share:.0%}",
        retry_after=_RETRY_AFTER,
    )
