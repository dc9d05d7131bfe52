"""Sends copies of requests, each in a task of its own that nobody waits for."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from random import Random
from typing import Any

from admission.shadow import ShadowBudget, rules_of
from octet.config.ensemble import CorrectnessConfig, ShadowConfig
from octet.v1 import inference_pb2 as wire
from router.after.kept import Kept
from router.after.room import Room
from router.replicas.channel import Connect, connect
from router.replicas.lane import Lane
from router.replicas.replica import Replica
from router.shadow.errand import ShadowErrand
from router.shadow.landed import Landed
from router.shadow.lines import Lines
from router.shadow.request import as_shadow
from router.shadow.seats import free_replica
from router.shadow.sending import Sending
from router.shadow.tally import Tally
from router.shadow.ticket import Ticket

_log = logging.getLogger(__name__)
MOST_BYTES = 8 << 20
"""Of what shadows under way were asked and have answered, all together."""


class Shadows:
    """Belongs to the event loop."""

    def __init__(
        self,
        lanes: Mapping[str, Lane],
        random: Random,
        credentials: Any,
        shadow: ShadowConfig,
        correctness: CorrectnessConfig,
        most_bytes: int = MOST_BYTES,
        told: Callable[[Landed], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        dial: Connect = connect,
    ) -> None:
        """`lanes` by specialist; `credentials` for their replicas, None for none. `told` hears of copies that are
        traced, with times in seconds by `clock`."""
        self._told = told
        self._clock = clock
        self._lanes = lanes
        self._random = random
        self._lines = Lines(credentials, dial)
        self._budget = ShadowBudget(rules_of(shadow))
        self._timeout = shadow.timeout
        self._answer_bytes = correctness.answer_bytes
        self.room = Room(most_bytes)
        self.tally = Tally()
        self._sent: Counter[Replica] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def num_inflight(self) -> int:
        return len(self._tasks)

    def apply(self, shadow: ShadowConfig, correctness: CorrectnessConfig) -> None:
        """Those under way go on as they began."""
        self._budget.retune(rules_of(shadow))
        self._timeout = shadow.timeout
        self._answer_bytes = correctness.answer_bytes

    def answered(self) -> None:
        """A request was answered, shadow or not: every so many pay for one."""
        self._budget.earn()

    def order(self, errand: ShadowErrand, primary: wire.Receipt) -> Ticket | None:
        """Never waits and never raises. None where there is no room for it. `primary` as it stands when its replica has
        accepted the request. Whoever gets a ticket waits for it or cancels it."""
        self.tally.ordered += 1
        try:
            ticket = self._sent_off(errand, primary)
        except Exception:
            _log.error("a shadow is not sent", exc_info=True)
            self.tally.failed += 1
            return None
        self.tally.shed += ticket is None
        return ticket

    async def close(self) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._lines.close()

    def _sent_off(self, errand: ShadowErrand, primary: wire.Receipt) -> Ticket | None:
        way = errand.order.way
        replica = free_replica(self._lanes[way.specialist], way, self._sent, errand.may_answer, self._random)
        if self._closed or replica is None or not self.room.take(errand.num_bytes):
            return None
        if not self._budget.take(counted=errand.order.why == "low_confidence"):
            self.room.give(errand.num_bytes)
            return None
        sending = Sending(replica, Kept(self.room, self._answer_bytes), errand.num_bytes)
        work = self._send(sending, errand, primary.accepted.seed, self._timeout)
        task = asyncio.create_task(work, name=f"shadow at {replica.name}")
        ticket = Ticket(errand.order, task.cancel)
        self._tasks.add(task)
        self._sent[replica] += 1
        task.add_done_callback(partial(self._landed, sending, ticket, primary))
        return ticket

    async def _send(self, sending: Sending, errand: ShadowErrand, seed: int, seconds: float) -> None:
        request = as_shadow(errand.compose(seconds), errand.order.way, seed)
        raw, hop = request.SerializeToString(), errand.trace()
        if request.HasField("max_tokens"):
            sending.most_chunks = request.max_tokens + 1
        del errand, request  # the caller's own words, which nobody may need any more
        if not self._has_room(sending, len(raw)):
            return
        replica = sending.replica
        try:
            async with asyncio.timeout(seconds):
                call = self._lines.generate(replica, self._there())(raw, timeout=seconds, metadata=hop.headers)
                del raw
                self.tally.sent += 1
                sending.span_id, sending.began = hop.span_id, self._clock()
                try:
                    await sending.listen(call)
                finally:
                    call.cancel()
        except TimeoutError:
            sending.ending = "failed"

    def _there(self) -> Iterator[Replica]:
        yield from self._sent
        for lane in self._lanes.values():
            yield from lane.replicas.values()

    def _has_room(self, sending: Sending, num_bytes: int) -> bool:
        """It is larger than was thought: a template was filled in, or a system prompt put before it."""
        more = max(0, num_bytes - sending.num_bytes)
        if not self.room.take(more):
            return False
        sending.num_bytes += more
        return True

    def _landed(self, sending: Sending, ticket: Ticket, primary: wire.Receipt, task: "asyncio.Task[None]") -> None:
        """However it went, also when it never began."""
        self._tasks.discard(task)
        self._budget.done()
        self.room.give(sending.num_bytes)
        self._sent[sending.replica] -= 1
        if not self._sent[sending.replica]:
            del self._sent[sending.replica]
        if not task.cancelled() and task.exception() is not None:
            _log.error("a shadow failed", exc_info=task.exception())
            sending.ending = "failed"
        self.tally.end(sending.ending)
        if self._told is not None and sending.span_id:
            self._told(_landed(sending, ticket, primary, self._clock()))
        ticket.land(sending.answer())


def _landed(sending: Sending, ticket: Ticket, primary: wire.Receipt, now: float) -> Landed:
    return Landed(
        primary,
        ticket.order,
        sending.replica.name,
        sending.span_id,
        sending.began,
        now,
        sending.ending,
        sending.usage,
    )
