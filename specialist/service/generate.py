"""The Generate call: through reception to the engine, and everything it says back to the caller."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Literal

from octet.rpc.calls import Context, write
from octet.rpc.refusal import Refusal, caller_stalled, draining, not_ready, queue_full, replica_failed
from octet.v1 import specialist_pb2 as wire
from specialist.service.board import LoadBoard
from specialist.service.engine_thread import EngineThread, Handover
from specialist.service.job import Job, Sink, Usage
from specialist.service.reception import Reception
from specialist.service.reply import event_of, failure_of
from specialist.service.retry import retry_after
from specialist.service.stream import Stream
from specialist.service.validate import Validator

Door = Literal["warming", "open", "draining", "failed"]
_CLOSED = {"warming": not_ready, "draining": draining, "failed": replica_failed}


class Generator:
    """Belongs to the event loop."""

    def __init__(
        self,
        engine: EngineThread,
        reception: Reception,
        validator: Validator,
        board: LoadBoard,
        *,
        stream_bytes: int,
        stall_seconds: float,
        jitter: Callable[[], float],
    ) -> None:
        """`jitter` draws from [0, 1)."""
        self._engine = engine
        self._reception = reception
        self._validator = validator
        self._board = board
        self._stream_bytes = stream_bytes
        self._stall_seconds = stall_seconds
        self._jitter = jitter
        self._live: set[Sink] = set()
        """Everything the engine has been given and has not ended."""
        self._num_open = 0
        """Calls that have not got their status yet."""
        self._ended = asyncio.Event()
        self.door: Door = "warming"

    async def generate(self, message: wire.GenerateRequest, context: Context) -> None:
        self._num_open += 1
        try:
            await self._generate(message, context)
        finally:
            self._num_open -= 1
            self._ended.set()

    async def _generate(self, message: wire.GenerateRequest, context: Context) -> None:
        self._check_open()
        ask = self._validator.generate(message)
        request_id = self._reception.new_id()
        stream = Stream(self._stream_bytes, partial(self._engine.end, request_id, "cancelled"))
        job = await self._reception.receive(ask, request_id, stream, context.time_remaining())
        try:
            self._check_open()
        except Refusal:
            job.release()
            raise
        self._live.add(stream)
        self._engine.submit(job)
        try:
            await self._relay(job, stream, context)
        finally:
            if stream in self._live:
                self._engine.end(request_id, "cancelled")

    @property
    def num_live(self) -> int:
        return len(self._live)

    def deliver(self, handover: Handover) -> None:
        for sink, news in handover.news:
            sink.put(news)
            if isinstance(news, Usage | Refusal):
                self._live.discard(sink)
        if handover.died:
            self.door = "failed"
        self._ended.set()

    def open(self) -> None:
        """The engine is warm. A door that was shut meanwhile stays shut."""
        if self.door == "warming":
            self.door = "open"

    def shut(self) -> None:
        """Take nothing new."""
        if self.door != "failed":
            self.door = "draining"

    async def drain(self) -> int:
        """Take nothing new, and wait until nothing is live. How many were."""
        self.shut()
        num_live = len(self._live)
        while self._live:
            self._ended.clear()
            await self._ended.wait()
        return num_live

    async def flushed(self) -> None:
        """Every caller has read its stream to the end, or gone."""
        while self._num_open:
            self._ended.clear()
            await self._ended.wait()

    def _check_open(self) -> None:
        if self.door != "open":
            raise _CLOSED[self.door]()
        seats = self._board.seats
        if len(self._live) >= seats.total:
            raise queue_full("waiting", seats.waiting, retry_after(self._board.drain_rate, self._jitter))

    async def _relay(self, job: Job, stream: Stream, context: Context) -> None:
        while True:
            for news in await stream.take():
                if isinstance(news, Refusal):
                    raise news
                await self._send(context, event_of(job, news))
                if isinstance(news, Usage):
                    failure = failure_of(job, news)
                    if failure is not None:
                        raise failure
                    return
            if stream.overflowed:
                raise caller_stalled(f"more than {self._stream_bytes:,} bytes waited for it")

    async def _send(self, context: Context, event: wire.GenerateEvent) -> None:
        if not await write(context, event, self._stall_seconds):
            raise caller_stalled(f"nothing was taken for {self._stall_seconds:g} s")
