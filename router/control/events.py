"""What happens, told to everybody who listens. A listener that does not keep up loses the oldest and is told so."""

import asyncio
from collections import deque
from collections.abc import Callable

from octet.v1 import operator_pb2 as wire

MOST_WAITING = 256


class Subscription:
    """Use it as a context, and iterate over it."""

    def __init__(self, most: int, leave: Callable[["Subscription"], None]) -> None:
        self._most = most
        self._leave = leave
        self._waiting: deque[wire.OperatorEvent] = deque()
        self._num_dropped = 0
        self._dropped_at = 0
        self._news = asyncio.Event()
        self._is_closed = False

    def __enter__(self) -> "Subscription":
        return self

    def __exit__(self, *_: object) -> None:
        self._leave(self)
        self.close()

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> wire.OperatorEvent:
        while True:
            if self._num_dropped:
                dropped, self._num_dropped = self._num_dropped, 0
                return wire.OperatorEvent(at_unix_ms=self._dropped_at, dropped=dropped)
            if self._waiting:
                return self._waiting.popleft()
            if self._is_closed:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()

    def tell(self, event: wire.OperatorEvent) -> None:
        if len(self._waiting) >= self._most:
            self._waiting.popleft()
            self._num_dropped += 1
            self._dropped_at = event.at_unix_ms
        self._waiting.append(event)
        self._news.set()

    def close(self) -> None:
        """What waits is still handed out."""
        self._is_closed = True
        self._news.set()


class Events:
    """Belongs to the event loop."""

    def __init__(self, most_waiting: int = MOST_WAITING) -> None:
        self._most_waiting = most_waiting
        self._subscriptions: set[Subscription] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._subscriptions)

    def subscribe(self) -> Subscription:
        subscription = Subscription(self._most_waiting, self._subscriptions.discard)
        if self._is_closed:
            subscription.close()
        else:
            self._subscriptions.add(subscription)
        return subscription

    def tell(self, event: wire.OperatorEvent) -> None:
        for subscription in self._subscriptions:
            subscription.tell(event)

    def close(self) -> None:
        self._is_closed = True
        for subscription in self._subscriptions:
            subscription.close()
        self._subscriptions.clear()
