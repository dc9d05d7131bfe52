"""Shadow dispatch: send copies of requests (shadows) within a budget, to replicas with free slots."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random

from admission.budgets import ShadowBudget
from octet.background import cancel_tasks
from octet.config.ensemble import CorrectnessConfig, ShadowConfig
from octet.v1 import inference_pb2 as wire
from octet.v1 import operator_pb2 as operator_wire
from router.dispatch.attempts import ContentKey
from router.dispatch.dispatcher import Write
from router.dispatch.http2.call import ReadLimits
from router.dispatch.replicas.replica import Replica, ReplicaConnection, ReplicaSet
from router.dispatch.transport import LOOKAHEAD_BYTES, Connect, ReplicaChannel
from router.quality.answers import ByteBudget, CapturedAnswer, FinishedAnswer, ShadowHandle, is_chunk
from router.quality.evaluation_queue import EvaluationQueue
from router.quality.shadow_copy import ShadowCounters, ShadowStream, ShadowTask, to_shadow_request
from router.routing.dispatch_plan import Candidate, DispatchPlan

_log = logging.getLogger(__name__)
MOST_SHADOW_BYTES = 8 << 20  # requests and answers of all shadows in flight together
MOST_MESSAGE_BYTES = 1 << 20  # larger events of a shadow are not read
_ROUTED_TAG = b"\x0a"  # first byte of the event that reports that a replica has accepted the request
_GENERATE = "/octet.v1.Specialist/Generate"
_READ_LIMITS = ReadLimits(MOST_MESSAGE_BYTES, LOOKAHEAD_BYTES)


class ShadowDispatcher:
    """Sends each shadow copy in its own task. Used only on the event loop."""

    def __init__(
        self,
        lanes: Mapping[str, ReplicaSet],
        random: Random,
        connect: Connect,
        shadow: ShadowConfig,
        correctness: CorrectnessConfig,
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
        self._budget = ShadowBudget(shadow.budget, shadow.max_inflight)
        self.answered = self._budget.earn  # every answered request, with or without a shadow, earns part of a shadow
        self._timeout = shadow.timeout
        self._answer_bytes = correctness.answer_bytes
        self.byte_budget = ByteBudget(most_bytes)
        self.counters = ShadowCounters()
        self._sent: Counter[Replica] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def num_inflight(self) -> int:
        return len(self._tasks)

    def apply(self, shadow: ShadowConfig, correctness: CorrectnessConfig) -> None:
        """Apply new settings. Shadows in flight keep the settings they began with."""
        self._budget.retune(shadow.budget, shadow.max_inflight)
        self._timeout = shadow.timeout
        self._answer_bytes = correctness.answer_bytes

    def order(self, task: ShadowTask, primary: wire.Receipt) -> ShadowHandle | None:
        """Send a copy in the background. Return its handle; None if it is not sent. Never waits and never raises.
        `primary` is the original request's receipt as it was when a replica accepted that request."""
        self.counters.ordered += 1
        try:
            handle = self._start(task, primary)
        except Exception:
            _log.error("Failed to send a shadow.", exc_info=True)
            self.counters.failed += 1
            return None
        self.counters.shed += handle is None
        return handle

    async def close(self) -> None:
        self._closed = True
        await cancel_tasks(*self._tasks)
        await self._channels.close()

    def _start(self, task: ShadowTask, primary: wire.Receipt) -> ShadowHandle | None:
        order = task.order
        lane = self._lanes[order.candidate.specialist]
        replica = pick_free_replica(lane, order.candidate, self._sent, task.may_answer, self._random)
        if self._closed or replica is None or not self.byte_budget.take(task.num_bytes):
            return None
        if not self._budget.take(counted=order.why == "low_confidence"):
            self.byte_budget.give(task.num_bytes)
            return None
        captured = CapturedAnswer(self.byte_budget, self._answer_bytes)
        stream = ShadowStream(replica, order, primary, captured, task.num_bytes)
        running = asyncio.create_task(self._send(stream, task, self._timeout), name=f"shadow at {replica.name}")
        handle = ShadowHandle(order, running.cancel)
        self._tasks.add(running)
        self._sent[replica] += 1
        running.add_done_callback(partial(self._done, stream, handle))
        return handle

    async def _send(self, stream: ShadowStream, task: ShadowTask, seconds: float) -> None:
        request = to_shadow_request(task.compose(seconds), task.order.candidate, stream.primary.accepted.seed)
        raw, outgoing = request.SerializeToString(), task.trace()
        stream.content = task.content()
        if request.HasField("max_tokens"):
            stream.most_chunks = request.max_tokens + 1
        del task, request  # frees the prompt: only its serialized form is needed
        more = max(0, len(raw) - stream.num_bytes)  # the template and system prompt may exceed the estimate
        if not self.byte_budget.take(more):
            return
        stream.num_bytes += more
        try:
            async with asyncio.timeout(seconds):
                known = {*self._sent, *(each for lane in self._lanes.values() for each in lane.replicas.values())}
                channel = self._channels.get(stream.replica, known)
                call = channel.stream(_GENERATE, raw, timeout=seconds, metadata=outgoing.headers)
                del raw
                self.counters.sent += 1
                stream.span_id, stream.began = outgoing.span_id, self._clock()
                try:
                    await stream.listen(call)
                finally:
                    call.cancel()
        except TimeoutError:
            stream.ending = "failed"

    def _done(self, stream: ShadowStream, handle: ShadowHandle, task: "asyncio.Task[None]") -> None:
        """Called when the task has ended, or was cancelled, even before it began. Free its budget; finish `handle`."""
        self._tasks.discard(task)
        self._budget.done()
        self.byte_budget.give(stream.num_bytes)
        self._sent[stream.replica] -= 1
        if not self._sent[stream.replica]:
            del self._sent[stream.replica]
        if not task.cancelled() and task.exception() is not None:
            _log.error("A shadow failed.", exc_info=task.exception())
            stream.ending = "failed"
        self.counters.end(stream.ending)
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
    shed = sent.shed + evaluated.shed_shadows
    return operator_wire.ShadowCounts(**counts, shed=shed, compared=evaluated.compared)


@dataclass(eq=False)
class AnswerTap:
    """Captures one answer on its way to the caller and starts its shadow, without affecting the request. At the end of
    the `with` block, an answer that was not submitted by `finished` is dropped, and its shadow is cancelled."""

    _evaluation: EvaluationQueue
    _shadows: ShadowDispatcher
    _write: Write  # the caller's writer; the relay uses `self.write` instead
    _plan: DispatchPlan
    _shadow: ShadowTask | None = None
    _routed: bytes | None = None
    _handle: ShadowHandle | None = None
    _is_submitted: bool = False

    def __post_init__(self) -> None:
        self._captured = self._evaluation.capture()

    def __enter__(self) -> "AnswerTap":
        return self

    def __exit__(self, *_: object) -> None:
        self._shadow = None
        if not self._is_submitted:
            self._captured.drop()
            if self._handle is not None:
                self._handle.cancel()

    async def write(self, raw: bytes) -> None:
        """Pass the event to the caller, then capture it. Raises only what the caller's writer raises."""
        await self._write(raw)
        try:
            if raw[:1] == _ROUTED_TAG:
                self._routed = raw
            elif is_chunk(raw):
                self._captured.add(raw)
                routed, self._routed = self._routed, None
                if routed is not None:
                    self._begun(routed)
        except Exception:
            _log.error("Failed to capture an answer for evaluation.", exc_info=True)

    def finished(self, receipt: wire.Receipt, question: str) -> None:
        """Submit the complete answer for evaluation, once, if it is a sample or has a shadow."""
        if self._is_submitted or not (self._plan.sample or self._handle is not None):
            return
        self._is_submitted = True
        candidate = self._plan.candidate(receipt.specialist)
        answer = FinishedAnswer(receipt, question, self._captured, candidate, self._plan.sample)
        self._evaluation.submit(answer, self._handle)

    def _begun(self, raw: bytes) -> None:
        """Send the shadow. Called at the first chunk: until then, the request may wait in the replica's queue, and a
        copy would wait, too. `raw` is the earlier event that reported the replica's acceptance."""
        shadow, self._shadow = self._shadow, None
        if shadow is None:
            return
        receipt = wire.InferEvent.FromString(raw).routed
        if self._plan.candidate(receipt.specialist).lane_id != shadow.order.candidate.lane_id:
            self._handle = self._shadows.order(shadow, receipt)
        if self._handle is None and not self._plan.sample:
            self._captured.drop()
