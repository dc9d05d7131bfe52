"""The Generate call: through reception to the engine, and everything it says back to the caller."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Literal

from admission.forecast import SWEEP_SECONDS, Desk, Refuse
from octet.clock import Clock
from octet.rpc.calls import Context, write
from octet.rpc.memory_guard import MemoryGuard
from octet.rpc.refusal import (
    Refusal,
    caller_stalled,
    draining,
    not_ready,
    past_deadline,
    past_first_token,
    replica_failed,
)
from octet.telemetry.handling import handle, handled_now
from octet.v1 import specialist_pb2 as wire
from specialist.account import under_way
from specialist.scheduler import Scheduler
from specialist.service.ask import Ask
from specialist.service.board import LoadBoard
from specialist.service.engine_thread import EngineThread, Handover
from specialist.service.job import Job, Sink, Usage
from specialist.service.reception import Reception
from specialist.service.reply import event_of, failure_of, refusal_of
from specialist.service.stream import Stream
from specialist.service.tally import DeskTally
from specialist.service.traced import Traced, trace_in
from specialist.service.tracing import Tracing
from specialist.service.validate import Validator

Door = Literal["warming", "open", "draining", "failed"]
_CLOSED = {"warming": not_ready, "draining": draining, "failed": replica_failed}


class Generator:
    """Belongs to the event loop."""

    def __init__(
        self,
        engine: EngineThread,
        scheduler: Scheduler,
        reception: Reception,
        validator: Validator,
        board: LoadBoard,
        desk: Desk,
        clock: Clock,
        *,
        stream_bytes: int,
        piece_gap: float,
        stall_seconds: float,
        memory: MemoryGuard,
        tracing: Tracing | None = None,
    ) -> None:
        self._tracing = tracing
        self._traced: dict[Sink, Traced] = {}
        """Of those live, the ones whose traces are collected."""
        self._engine = engine
        self._scheduler = scheduler
        """The engine's; only to be looked at."""
        self._reception = reception
        self._validator = validator
        self._board = board
        self._stream_bytes = stream_bytes
        self._piece_gap = piece_gap
        self._stall_seconds = stall_seconds
        self.memory = memory
        self._desk = desk
        self._clock = clock
        self._swept_at = clock.now()
        self._live: dict[Sink, str] = {}
        """Everything the engine has been given and has not ended, by the replica's own names."""
        self._num_open = 0
        """Calls that have not got their status yet."""
        self._ended = asyncio.Event()
        self.tally = DeskTally()
        self.door: Door = "warming"

    async def generate(self, message: wire.GenerateRequest, context: Context) -> None:
        self._num_open += 1
        traced = self._begin(message, context)
        try:
            await self._generate(message, context, traced)
        except BaseException as error:
            if traced is not None and not traced.is_live and self._tracing is not None:
                self._tracing.turned_away(traced, error)
            raise
        finally:
            self._num_open -= 1
            self._ended.set()

    async def count(self, message: wire.GenerateRequest) -> wire.CountTokensResponse:
        """Through the same reception, and no further."""
        self._check_open()
        ask = self._validator.generate(message)
        return wire.CountTokensResponse(prompt_tokens=await self._reception.count(ask))

    def _begin(self, message: wire.GenerateRequest, context: Context) -> Traced | None:
        """Whose request this is, for whatever is logged of it. None where nobody collects its trace."""
        parent, state = trace_in(context)
        handle(message.request_id, "" if parent is None else parent.trace_id)
        if self._tracing is None or parent is None or not parent.is_sampled:
            return None
        return Traced(parent, state, message.request_id, message.shadow, self._clock.now())

    async def _generate(self, message: wire.GenerateRequest, context: Context, traced: Traced | None) -> None:
        self._check_open()
        ask = self._validator.generate(message)
        self.memory.check(can_wait=ask.shadow)
        self._check_full(ask)
        request_id = self._reception.new_id()
        cut = partial(self._engine.end, request_id, "cancelled")
        stream = Stream(self._stream_bytes, cut, self._piece_gap)
        job = await self._reception.receive(ask, request_id, stream, context.time_remaining())
        try:
            self._check_open()
            job = self._admit(job)
        except BaseException:
            job.release()
            raise
        self._live[stream] = request_id
        if traced is not None:
            traced.let_in(job, self._clock.now())
            self._traced[stream] = traced
        self._engine.submit(job)
        try:
            await self._relay(job, stream, context)
        finally:
            if stream in self._live:
                self._engine.end(request_id, "cancelled")

    @property
    def num_live(self) -> int:
        return len(self._live)

    @property
    def num_open(self) -> int:
        return self._num_open

    @property
    def forecast_margin(self) -> float:
        """By how much a stretch of work may well take longer than forecast, as a share."""
        return self._desk.estimator.margin

    def _admit(self, job: Job) -> Job:
        """The desk's verdict, done as it says. Raises Refusal."""
        now = self._clock.now()
        if job.request.deadline is not None and job.request.deadline <= now:
            raise past_deadline()
        if job.request.first_deadline is not None and job.request.first_deadline <= now:
            raise past_first_token()
        self._desk.stepping(under_way(self._scheduler))
        verdict = self._desk.ask(job.booking, now)
        self.tally.judged(verdict, shadow=job.booking.shadow)
        if isinstance(verdict, Refuse):
            self._board.changed()
            raise refusal_of(verdict, self._board.seats.waiting)
        self._desk.enter(job.booking, verdict, now)
        for key in verdict.displaced:
            self._engine.end(key, "shed")
        for key in verdict.aside:
            self._engine.set_aside(key, job.request.request_id)
        return replace(job, admit=verdict, trace_id=handled_now().trace_id)

    def deliver(self, handover: Handover) -> None:
        if handover.account is not None:
            handover.account.book(self._desk)
        for sink, news in handover.news:
            sink.put(news)
            if isinstance(news, Usage | Refusal):
                self._desk.forget(self._live.pop(sink, ""))
                if self._tracing is not None and (traced := self._traced.pop(sink, None)) is not None:
                    self._tracing.ended(traced, news)
        self._sweep()
        if handover.died:
            self.door = "failed"
        self._ended.set()

    def _sweep(self) -> None:
        """Who waits in vain ends before it costs anything; who was set aside comes back."""
        now = self._clock.now()
        if now - self._swept_at < SWEEP_SECONDS and not self._desk.is_due:
            return
        self._swept_at = now
        self._desk.stepping(under_way(self._scheduler))
        sweep = self._desk.sweep(now)
        for key in sweep.shed:
            self._engine.end(key, "shed")
        for key in sweep.aside:
            self._engine.set_aside(key, sweep.beneficiary)
        for key in sweep.back:
            self._engine.call_back(key)

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

    def _check_full(self, ask: Ask) -> None:
        """Whoever comes to a full line and is not above anybody there need not be tokenised. Raises Refusal."""
        full = self._desk.full(ask.priority, self._clock.now(), shadow=ask.shadow)
        if full is not None:
            self.tally.judged(full, shadow=ask.shadow)
            self._board.changed()
            raise refusal_of(full, self._board.seats.waiting)

    async def _relay(self, job: Job, stream: Stream, context: Context) -> None:
        while True:
            for news in await stream.take():
                if isinstance(news, Refusal):
                    raise news
                await self._send(context, event_of(job, news))
                if isinstance(news, Usage):
                    failure = failure_of(job, news, partial(self._retry_after, job))
                    if failure is not None:
                        raise failure
                    return
            if stream.overflowed:
                raise caller_stalled(f"more than {self._stream_bytes:,} bytes waited for it")

    def _retry_after(self, job: Job) -> float | None:
        return self._desk.retry_after(job.booking, self._clock.now())

    async def _send(self, context: Context, event: wire.GenerateEvent) -> None:
        if not await write(context, event, self._stall_seconds):
            raise caller_stalled(f"nothing was taken for {self._stall_seconds:g} s")
