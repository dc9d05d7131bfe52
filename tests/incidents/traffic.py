"""Callers that send requests during an incident rehearsal."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from octet.v1 import specialist_pb2 as replica_wire
from tests.incidents.rehearsal import Rehearsal
from tests.router.serving.harness import CallResult

_BACK_OFF = 0.2
_FEW = 5


@dataclass
class Traffic:
    """Callers that each send one request after another, with pauses."""

    rehearsal: Rehearsal
    prompt: Callable[[int], str]
    callers: int
    pause: float = 0.0
    fields: dict[str, Any] = field(default_factory=dict)
    lately: deque[CallResult] = field(default_factory=lambda: deque(maxlen=200))
    asked: int = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Traffic"]:
        tasks = [asyncio.create_task(self._send_requests()) for _ in range(self.callers)]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            for shown in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(shown, asyncio.CancelledError), shown

    async def _send_requests(self) -> None:
        while True:
            self.asked += 1
            received = await self.rehearsal.ask(self.prompt(self.asked), **self.fields)
            self.lately.append(received)
            await asyncio.sleep(self.pause if received.code is grpc.StatusCode.OK else max(self.pause, _BACK_OFF))

    @property
    def answered(self) -> list[CallResult]:
        return [received for received in self.lately if received.code is grpc.StatusCode.OK]

    @property
    def refused(self) -> list[CallResult]:
        return [received for received in self.lately if received.code is grpc.StatusCode.RESOURCE_EXHAUSTED]

    @property
    def answerers(self) -> set[str]:
        """The specialists that gave the most recent answers."""
        return {received.receipt.specialist for received in self.answered[-_FEW:] if received.receipt is not None}

    def missed(self, reason: replica_wire.MissReason) -> list[str]:
        """Return the ids of answered requests that missed the cache for this reason."""
        receipts = [received.receipt for received in self.answered if received.receipt is not None]
        return [receipt.request_id for receipt in receipts if receipt.usage.miss_reason == reason]
