"""Turns new work away before the kernel ends the process for want of memory."""

from collections.abc import Callable
from math import inf

import grpc

from octet.clock import Clock
from octet.rpc.cgroup_memory import Memory
from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2 as wire

TIGHT, FULL = 0.92, 0.95
"""Of the limit. From the first on whoever can wait is turned away, from the second on everybody: by a replica shadows,
by a router what is less urgent than usual."""
_SECONDS = 1.0
"""Between two looks."""
_RETRY_AFTER = 2.0


class MemoryGuard:
    def __init__(self, read: Callable[[], Memory | None], clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._looked = -inf
        self._memory: Memory | None = None

    def check(self, *, can_wait: bool) -> None:
        """Raises Refusal. What is under way goes on: it has its memory already."""
        memory = self._current()
        if memory is None or memory.share < TIGHT:
            return
        if memory.share >= FULL or can_wait:
            raise memory_full(memory)

    def _current(self) -> Memory | None:
        now = self._clock.now()
        if now - self._looked >= _SECONDS:
            self._looked, self._memory = now, self._read()
        return self._memory


def memory_full(memory: Memory) -> Refusal:
    mib = memory.limit >> 20
    return Refusal(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        wire.ERROR_REASON_QUEUE_FULL,
        f"{memory.share:.0%} of the {mib:,} MiB of memory that this process may have are taken",
        field="memory",
        limit=f"less than {TIGHT:.0%} of {mib:,} MiB, {FULL:.0%} for what cannot wait",
        value=f"{memory.share:.0%}",
        retry_after=_RETRY_AFTER,
    )
