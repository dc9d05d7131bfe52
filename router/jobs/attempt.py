"""One job in this router's hands: answered like any other request, and written down as it is said."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from octet.clock import Clock
from octet.config.ensemble import JobsConfig
from octet.rpc.refusal import Refusal, failed_inside, past_deadline
from octet.store import StoreUnavailable
from octet.store.job_rows import Ended, Ending, JobRow, Writing
from octet.store.jobs import JobStore
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire
from octet.v1 import jobs_pb2 as jobs
from router.dispatch.relay import Write
from router.jobs.again import seconds_until_again
from router.jobs.refusals import lost_too_often, too_long
from router.jobs.tally import Tally
from router.jobs.told import begun
from router.receipts.receipt import METADATA_KEY
from router.reception.caller import Caller
from router.said import Said

_log = logging.getLogger(__name__)
_FLUSH_SECONDS = 0.25
_FLUSHES = 1000
"""A long answer is written down less often: at most once in such a part of the time it has taken. So the number of its
events stays small, however long it takes."""
_PAUSE_SECONDS = 0.5
"""Until a store that did not answer is asked again."""

Answer = Callable[[wire.InferRequest, float, Write, Caller], Coroutine[Any, Any, None]]
"""What every request goes through, with the seconds it has left. Raises Refusal."""


@dataclass(frozen=True, slots=True)
class Means:
    """What all attempts share."""

    store: JobStore
    answer: Answer
    config: JobsConfig
    clock: Clock
    wall_ms: Callable[[], int]
    chance: Callable[[], float]
    """Draws from [0, 1)."""
    told: Callable[[str], None]
    """Hears the id of a job of which something new is on record."""
    tally: Tally = field(default_factory=Tally)


class Attempt:
    """Belongs to the event loop."""

    def __init__(self, row: JobRow, means: Means) -> None:
        self.row = row
        self._means = means
        self._written = row.events
        self._said = Said()
        """And not yet written."""
        self._num_bytes = 0
        self._is_begun = self._begins = self._is_lost = self._is_given_up = self._is_too_long = False
        self._receipt: wire.Receipt | None = None
        self._pending: Writing | None = None
        """Tried, and it is not known whether it was made."""
        self._writing = asyncio.Lock()
        self._answering: asyncio.Task[None] | None = None

    @property
    def place(self) -> tuple[str, int]:
        return self.row.id, self.row.epoch

    def lose(self) -> None:
        """It is in other hands, or has ended: whatever comes of it now, nobody wants it."""
        self._is_lost = True
        self.give_up()

    def give_up(self) -> None:
        """The work ends, or does not begin. Unless it was lost, the job is left to whoever takes it next."""
        self._is_given_up = True
        if self._answering is not None:
            self._answering.cancel()

    async def run(self) -> None:
        """Returns when the job has ended, is left to others, or is in other hands."""
        hopeless = self._hopeless()
        if hopeless is not None:
            await self._end("failed", hopeless)
            return
        if self._is_given_up:
            if not self._is_lost:
                await self._leave(0.0, lost=False)
            return
        self._answering = asyncio.create_task(self._ask())
        pumping = asyncio.create_task(self._pump())
        try:
            await asyncio.wait({self._answering})
        finally:
            for task in (self._answering, pumping):
                task.cancel()
            await asyncio.gather(self._answering, pumping, return_exceptions=True)
        if not self._is_lost:
            await self._settle(self._answering)

    def _hopeless(self) -> Refusal | None:
        if self._seconds_left() <= 0:
            return past_deadline()
        return lost_too_often(self.row.lost) if self.row.lost >= self._means.config.attempts else None

    def _seconds_left(self) -> float:
        return (self.row.deadline_ms - self._means.wall_ms()) / 1000

    async def _ask(self) -> None:
        row = self.row
        request = wire.InferRequest.FromString(row.request)
        request.request_id = f"{row.id}-{row.epoch}"
        request.ClearField("timeout_ms")
        await self._means.answer(request, self._seconds_left(), self._hear, Caller(row.tenant, row.caller))

    async def _hear(self, raw: bytes) -> None:
        event = wire.InferEvent.FromString(raw)
        if event.HasField("chunk"):
            before = self._said.num_bytes
            self._said.hear(event.chunk)
            self._num_bytes += self._said.num_bytes - before
            if self._num_bytes > self._means.config.answer_bytes and not self._is_too_long:
                self._is_too_long = True
                self.give_up()
        elif event.HasField("routed"):
            self._receipt = event.routed
            self._begins = self._begins or not self._is_begun
            self._is_begun = True
        else:
            self._receipt = event.receipt

    async def _pump(self) -> None:
        began = self._means.clock.now()
        while True:
            await asyncio.sleep(max(_FLUSH_SECONDS, (self._means.clock.now() - began) / _FLUSHES))
            if (self._begins or self._said.num_bytes) and not await self._write():
                self.lose()
                return

    async def _settle(self, answering: "asyncio.Task[None]") -> None:
        if self._is_too_long:
            await self._end("failed", too_long(self._means.config.answer_bytes))
        elif answering.cancelled():
            await self._leave(0.0, lost=False)
        elif (error := answering.exception()) is None:
            await self._end("done", None)
        elif isinstance(error, Refusal):
            await self._refused(error)
        else:
            _log.error("%s failed", self.row.id, exc_info=error)
            await self._end("failed", failed_inside("the router"))

    async def _refused(self, refusal: Refusal) -> None:
        """What was begun counts as lost: it begins anew, and not for ever."""
        self._receipt = _receipt_of(refusal) or self._receipt
        row = self.row
        seconds = seconds_until_again(refusal, row.epoch // 2, self._means.chance())
        if seconds is None or (self._is_begun and row.lost + 1 >= self._means.config.attempts):
            is_cancelled = refusal.error.reason == error_pb2.ERROR_REASON_CANCELLED
            await self._end("cancelled" if is_cancelled else "failed", refusal)
        else:
            await self._leave(seconds, lost=self._is_begun)

    async def _leave(self, seconds: float, *, lost: bool) -> None:
        """To whoever takes it after so long; not beyond its deadline."""
        row, means = self.row, self._means
        if (self._begins or self._said.num_bytes) and not await self._write():
            return
        due_ms = min(row.deadline_ms, means.wall_ms() + round(seconds * 1000)) if seconds else 0  # by any clock
        await self._surely(lambda: means.store.release(row.id, row.epoch, due_ms, lost=lost))

    async def _end(self, status: Ended, refusal: Refusal | None) -> None:
        result = jobs.Job(receipt=self._receipt, error=None if refusal is None else refusal.error)
        if await self._write(Ending(status, self._means.wall_ms(), result.SerializeToString())):
            self._means.tally.ended[status] += 1

    async def _write(self, ends: Ending | None = None) -> bool:
        """What has come since the last time. False: it is in other hands."""
        async with self._writing:
            if self._pending is not None and not await self._made(self._pending):
                return False
            return await self._made(self._next(ends))

    def _next(self, ends: Ending | None) -> Writing:
        events = []
        now_ms = self._means.wall_ms()
        if self._begins:
            events.append(begun(self.row, now_ms).SerializeToString())
        if self._said.num_bytes:
            events.append(jobs.JobEvent(chunk=self._said.chunk()).SerializeToString())
        begins_ms = now_ms if self._begins else None
        self._said, self._begins = Said(), False
        self._pending = Writing(self.row.id, self.row.epoch, self._written, events, begins_ms, ends)
        return self._pending

    async def _made(self, writing: Writing) -> bool:
        made: bool = await self._surely(lambda: self._means.store.write(writing))
        self._pending = None
        self._written += len(writing.events) + (writing.ends is not None)
        self._means.told(self.row.id)
        return made

    async def _surely(self, do: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """However long the store is away; what is tried again has one effect."""
        while True:
            try:
                return await do()
            except StoreUnavailable:
                await asyncio.sleep(_PAUSE_SECONDS)


def _receipt_of(refusal: Refusal) -> wire.Receipt | None:
    raw = dict(refusal.beside).get(METADATA_KEY)
    return None if raw is None else wire.Receipt.FromString(raw)
