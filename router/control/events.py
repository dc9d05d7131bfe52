"""Operator events, broadcast to subscribers with bounded queues. Used on the event loop."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from octet.v1 import operator_pb2 as wire

MAX_QUEUED_EVENTS = 256


class EventQueue:
    """A bounded queue. A slow subscriber loses its oldest events and receives their number."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._queue: deque[wire.OperatorEvent] = deque()
        self._num_dropped = self._dropped_at = 0
        self._wakeup = asyncio.Event()
        self._is_closed = False

    def __aiter__(self) -> "EventQueue":
        return self

    async def __anext__(self) -> wire.OperatorEvent:
        while True:
            if self._num_dropped:
                dropped, self._num_dropped = self._num_dropped, 0
                return wire.OperatorEvent(at_unix_ms=self._dropped_at, dropped=dropped)
            if self._queue:
                return self._queue.popleft()
            if self._is_closed:
                raise StopAsyncIteration
            self._wakeup.clear()
            await self._wakeup.wait()

    def put(self, event: wire.OperatorEvent) -> None:
        if len(self._queue) >= self._most:
            self._queue.popleft()
            self._num_dropped += 1
            self._dropped_at = event.at_unix_ms
        self._queue.append(event)
        self._wakeup.set()

    def close(self) -> None:
        self._is_closed = True
        self._wakeup.set()


class OperatorEvents:
    def __init__(self, max_queued: int = MAX_QUEUED_EVENTS) -> None:
        self._max_queued = max_queued
        self._queues: set[EventQueue] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._queues)

    @contextmanager
    def subscribe(self) -> Iterator[AsyncIterator[wire.OperatorEvent]]:
        """Yield the events that are published from now on."""
        queue = EventQueue(self._max_queued)
        self._queues.add(queue)
        if self._is_closed:
            queue.close()
        try:
            yield queue
        finally:
            self._queues.discard(queue)
            queue.close()

    def publish(self, event: wire.OperatorEvent) -> None:
        for queue in self._queues:
            queue.put(event)

    def close(self) -> None:
        self._is_closed = True
        for queue in self._queues:
            queue.close()
