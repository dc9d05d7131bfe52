"""Shadow dispatch: send copies of requests (shadows) within a budget, to replicas with free slots."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any, get_args

from admission.budgets import NoShadow, ShadowBudgets, ShadowGrant
from admission.knobs import UNSPECIFIED_INTENT
from octet.background import cancel_tasks
from octet.config.ensemble import Ensemble
from octet.v1 import inference_pb2 as wire
from octet.v1 import operator_pb2 as operator_wire
from router.dispatch.attempts import ContentKey
from router.dispatch.http2.call import ReadLimits
from router.dispatch.replicas.replica import Replica, ReplicaConnection, ReplicaSet
from router.dispatch.transport import GENERATE, LOOKAHEAD_BYTES, Connect, ReplicaChannel
from router.quality.answers import ByteBudget, CancelReason, CapturedAnswer, ShadowHandle
from router.quality.evaluation_queue import EvaluationQueue
from router.quality.shadow_copy import (
    OrderedShadow,
    ShadowCounters,
    ShadowEndReason,
    ShadowStream,
    ShadowTask,
    to_shadow_request,
)
from router.routing.dispatch_plan import Candidate, CountedReason, ShadowOrder

_log = logging.getLogger(__name__)
MOST_SHADOW_BYTES = 8 << 20  # requests and answers of all shadows in flight together
MOST_MESSAGE_BYTES = 1 << 20  # larger events of a shadow are not read
_READ_LIMITS = ReadLimits(MOST_MESSAGE_BYTES, LOOKAHEAD_BYTES)


class ShadowDispatcher:
    """Sends shadow copies. Each answer is read in its own task. Used only on the event loop."""

    def __init__(
        self,
        lanes: Mapping[str, ReplicaSet],
        random: Random,
        connect: Connect,
        ensemble: Ensemble,
        most_bytes: int = MOST_SHADOW_BYTES,
        on_traced: Callable[[ShadowStream], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        blame: Callable[[ContentKey, ReplicaConnection], None] | None = None,
    ) -> None:
        """`lanes` maps specialists to their replicas. `on_traced` receives finished shadows of traced requests. `blame`
        receives the content of each shadow whose connection broke after its replica had accepted it."""
        self._blame = blame
        self._on_traced = on_traced
        self._clock = clock
        self._lanes = lanes
        self._random = random
        self._channels = ShadowChannels(connect)
        self.budgets = ShadowBudgets(0.0, 0, ())
        self.byte_budget = ByteBudget(most_bytes)
        self.counters = ShadowCounters()
        self._num_sent: Counter[Replica] = Counter()
        self._inflight: dict[ShadowHandle, str] = {}  # with their groups, oldest first
        self._tasks: set[asyncio.Task[None]] = set()
        self.choosing: set[asyncio.Task[ShadowTask | None]] = set()  # shadows whose specialist is being chosen
        self._closed = False
        self.apply(ensemble)

    @property
    def num_inflight(self) -> int:
        return self.budgets.num_inflight

    def apply(self, ensemble: Ensemble) -> None:
        """Apply new settings. Shadows in flight keep the settings they began with."""
        shadow, intents = ensemble.shadow, {UNSPECIFIED_INTENT, *(intent.name for intent in ensemble.intents)}
        self.budgets.retune(shadow.budget, shadow.max_inflight, sorted(intents))
        self._timeout = shadow.timeout
        self._answer_bytes = ensemble.correctness.answer_bytes

    def answered(self, intent: str) -> None:
        """Count an answered request: with or without a shadow, it earns part of a shadow for its intent."""
        self.budgets.earn(intent or UNSPECIFIED_INTENT)

    def may_send(self, order: ShadowOrder, intent: str) -> ShadowGrant | NoShadow:
        counted = order.why in get_args(CountedReason)
        intent = intent or UNSPECIFIED_INTENT
        group = intent if counted else f"{order.why}/{order.candidate.specialist}"  # no intent's name contains a slash
        return self.budgets.plan(group, intent if counted else None)

    def send(self, task: ShadowTask, ordered: OrderedShadow, primary: wire.Receipt) -> ShadowHandle | None:
        """Send a copy. Return its handle; None if it was not sent. Never waits and never raises. `primary` is the
        original request's receipt as it was when a replica accepted that request."""
        try:
            sent = self._send(task, ordered, primary)
        except Exception:
            _log.error("Failed to send a shadow.", exc_info=True)
            ordered.end("failed", "error")
            return None
        if isinstance(sent, str):
            ordered.end("shed", sent)
            return None
        return sent

    async def close(self) -> None:
        self._closed = True
        for handle in tuple(self._inflight):
            handle.cancel("closed")
        await cancel_tasks(*self._tasks)
        await self._channels.close()

    def _send(self, task: ShadowTask, ordered: OrderedShadow, primary: wire.Receipt) -> ShadowHandle | ShadowEndReason:
        order = task.order
        if self._closed:
            return "closed"
        grant = self.may_send(order, primary.decision.intent)
        if isinstance(grant, str):
            return grant
        lane, seconds = self._lanes[order.candidate.specialist], self._timeout
        replica = pick_free_replica(lane, order.candidate, self._num_sent, task.may_answer, self._random)
        if replica is None:
            return "no_replica"
        if not self.byte_budget.take(task.num_bytes):
            return "no_memory"
        stream = ShadowStream(
            replica, ordered, primary, CapturedAnswer(self.byte_budget, self._answer_bytes), task.num_bytes
        )
        try:
            call = self._call(stream, task, seconds)
        except BaseException:
            self.byte_budget.give(stream.num_bytes)
            raise
        if call is None:
            self.byte_budget.give(stream.num_bytes)
            return "no_memory"
        if grant.displaced:
            newest = next(handle for handle, group in reversed(self._inflight.items()) if group == grant.displaced)
            newest.cancel("displaced")
        self.budgets.take(grant)
        return self._listen(stream, call, grant.group, seconds)

    def _call(self, stream: ShadowStream, task: ShadowTask, seconds: float) -> Any:
        """Start the call and return it; None if its request does not fit into the byte budget."""
        replica, outgoing = stream.replica, task.trace()
        request = to_shadow_request(task.compose(seconds), task.order.candidate, stream.primary.accepted.seed)
        raw = request.SerializeToString()
        more = max(0, len(raw) - stream.num_bytes)  # the template and system prompt may exceed the estimate
        if not self.byte_budget.take(more):
            return None
        stream.num_bytes += more
        stream.content = task.content()
        if request.HasField("max_tokens"):
            stream.most_chunks = request.max_tokens + 1
        known = {*self._num_sent, *(each for lane in self._lanes.values() for each in lane.replicas.values())}
        channel = self._channels.get(replica, known)
        call = channel.stream(GENERATE, raw, timeout=seconds, metadata=outgoing.headers)
        stream.span_id, stream.began = outgoing.span_id, self._clock()
        stream.ordered.sent(replica.name)
        return call

    def _listen(self, stream: ShadowStream, call: Any, group: str, seconds: float) -> ShadowHandle:
        async def listen() -> None:
            try:
                async with asyncio.timeout(seconds):
                    await stream.listen(call)
            except TimeoutError:
                stream.ordered.end("failed", "timed_out")

        task = asyncio.create_task(listen(), name=f"shadow at {stream.replica.name}")

        def stop(reason: CancelReason) -> None:
            stream.ordered.end("shed", reason)
            call.cancel()
            task.cancel()
            self._leave(handle)

        handle = ShadowHandle(stream.order, stop)
        self._tasks.add(task)
        self._inflight[handle] = group
        self._num_sent[stream.replica] += 1
        task.add_done_callback(partial(self._done, stream, handle, call))
        return handle

    def _leave(self, handle: ShadowHandle) -> None:
        """Free the slot of a shadow that has ended or was told to end."""
        group = self._inflight.pop(handle, None)
        if group is not None:
            self.budgets.done(group)

    def _done(self, stream: ShadowStream, handle: ShadowHandle, call: Any, task: "asyncio.Task[None]") -> None:
        """Called when the task has ended, or was cancelled, even before it began. Free its budget; finish `handle`."""
        call.cancel()
        self._tasks.discard(task)
        self._leave(handle)
        self.byte_budget.give(stream.num_bytes)
        self._num_sent[stream.replica] -= 1
        if not self._num_sent[stream.replica]:
            del self._num_sent[stream.replica]
        if not task.cancelled() and task.exception() is not None:
            _log.error("A shadow failed.", exc_info=task.exception())
            stream.ordered.end("failed", "error")
        stream.ordered.end("shed", "cancelled")
        if self._blame is not None and stream.broken is not None:
            self._blame(lambda: stream.content, stream.broken)
        if self._on_traced is not None and stream.span_id:
            stream.ended = self._clock()
            self._on_traced(stream)
        handle.finish(stream.answer())


class ShadowChannels:
    """Separate connections for shadows, one per replica, so that shadows never delay answers to callers."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._channels: dict[Replica, ReplicaChannel] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def get(self, replica: Replica, known: set[Replica]) -> ReplicaChannel:
        """Return the channel to `replica`. If it is new, close the channels to replicas that are not in `known`."""
        if replica not in self._channels:
            self._close_all_but({replica, *known})
            self._channels[replica] = self._connect(replica.target, _READ_LIMITS)
        return self._channels[replica]

    async def close(self) -> None:
        self._close_all_but(set())
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _close_all_but(self, known: set[Replica]) -> None:
        for replica in [each for each in self._channels if each not in known]:
            task = asyncio.create_task(self._channels.pop(replica).close(), name=f"close {replica.name}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def pick_free_replica(
    lane: ReplicaSet,
    candidate: Candidate,
    sent: Mapping[Replica, int],
    may_answer: Callable[[Replica], bool],
    random: Random,
) -> Replica | None:
    """Return the least loaded replica that has a free slot, holds the adapters and accepts requests. Return None if
    there is none, because a shadow never waits. `sent` counts this router's shadows at each replica."""
    found = []
    for replica in lane.replicas.values():
        load, snapshot = replica.report, replica.snapshot(lane.dispatch.stale_seconds)
        if load is None:
            continue
        share = (snapshot.depth + max(load.shadows, sent.get(replica, 0))) / snapshot.max_running
        is_fit = (
            share < 1
            and replica.is_usable
            and replica.breaker.state == "closed"  # other breakers allow only a probe, kept for a caller's request
            and not load.refusing
            and not load.preempting
            and replica.adapters.issuperset(candidate.adapters)
            and (not candidate.revision or load.revision == candidate.revision)
        )
        if is_fit and may_answer(replica):
            found.append((share, random.random(), replica))
    return min(found, key=lambda each: each[:2])[2] if found else None


def shadow_counts_to_wire(shadows: ShadowDispatcher, evaluation: EvaluationQueue) -> operator_wire.ShadowCounts:
    """Combine the counters. A shadow's answer dropped before its comparison counts as answered and as shed."""
    sent, evaluated = shadows.counters, evaluation.counters
    counts = {name: getattr(sent, name) for name in ("ordered", "sent", "answered", "failed")}
    ended: dict[tuple[str, str], int] = {**sent.ended, ("shed", "not_compared"): evaluated.shed_shadows}
    reasons = [
        operator_wire.ShadowReasonCount(outcome=ending, reason=reason, count=number)
        for (ending, reason), number in sorted(ended.items(), key=lambda each: (-each[1], each[0]))
        if reason and number
    ]
    shed = sent.shed + evaluated.shed_shadows
    return operator_wire.ShadowCounts(**counts, shed=shed, compared=evaluated.compared, reasons=reasons)
