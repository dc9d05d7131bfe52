"""People who ask."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from octet.v1 import specialist_pb2 as replica_wire
from tests.incidents.scene import Scene
from tests.router.serving.harness import Heard

_BACK_OFF = 0.2
_FEW = 5


@dataclass
class Traffic:
    """People who ask one after the other, and ask again at once, or after a pause."""

    scene: Scene
    question: Callable[[int], str]
    people: int
    pause: float = 0.0
    fields: dict[str, Any] = field(default_factory=dict)
    lately: deque[Heard] = field(default_factory=lambda: deque(maxlen=200))
    asked: int = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Traffic"]:
        tasks = [asyncio.create_task(self._person()) for _ in range(self.people)]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            for told in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(told, asyncio.CancelledError), told

    async def _person(self) -> None:
        while True:
            self.asked += 1
            heard = await self.scene.ask(self.question(self.asked), **self.fields)
            self.lately.append(heard)
            await asyncio.sleep(self.pause if heard.code is grpc.StatusCode.OK else max(self.pause, _BACK_OFF))

    @property
    def answered(self) -> list[Heard]:
        return [heard for heard in self.lately if heard.code is grpc.StatusCode.OK]

    @property
    def refused(self) -> list[Heard]:
        return [heard for heard in self.lately if heard.code is grpc.StatusCode.RESOURCE_EXHAUSTED]

    @property
    def answerers(self) -> set[str]:
        """Of the last few."""
        return {heard.receipt.specialist for heard in self.answered[-_FEW:] if heard.receipt is not None}

    def missed(self, reason: replica_wire.MissReason) -> list[str]:
        """Ids of requests of whose prompts something had to be computed, for that reason."""
        receipts = [heard.receipt for heard in self.answered if heard.receipt is not None]
        return [receipt.request_id for receipt in receipts if receipt.usage.miss_reason == reason]
