"""Primary answers with their shadows and evaluation, from real replicas behind sockets, but without the router's
API."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from octet.clock import SystemClock
from octet.config.ensemble import CorrectnessConfig, DispatchConfig, Ensemble, ShadowConfig, SpecialistConfig
from octet.rpc.handlers import Context
from octet.v1 import inference_pb2 as wire
from octet.v1 import operator_pb2 as operator
from octet.v1 import specialist_pb2
from router.dispatch.attempts import ReplicaAttempt
from router.dispatch.dispatcher import Write, relay
from router.dispatch.replicas.fleet import Fleet
from router.dispatch.transport import open_transport
from router.quality.answer_tap import AnswerTap, ChooseShadow
from router.quality.answers import JudgedAnswer
from router.quality.evaluation import load_evaluation_rules
from router.quality.evaluation_queue import EvaluationQueue
from router.quality.shadow import ShadowDispatcher
from router.quality.shadow_copy import OrderedShadow, ShadowTask
from router.request import OutgoingTrace
from router.routing.dispatch_plan import Candidate, DispatchPlan, ShadowOrder
from router.verify.by_task import VerifierSet
from router.verify.verdict import Outcome, Verdict
from tests.patience import PATIENCE
from tests.router.serving.spy import Behaviour, SpyReplica, running_spy

PRIMARY, SHADOW = "writer", "critic"
LANES = {name: f"{name}|1|abc" for name in (PRIMARY, SHADOW)}
DISPATCH = DispatchConfig(heartbeat_seconds=0.05, cool_down=0.1)


def answering(
    *texts: str,
    lane: str = PRIMARY,
    seconds: float = 0.0,
    finish: specialist_pb2.FinishReason = specialist_pb2.FINISH_REASON_STOP,
) -> Behaviour:
    """Return the behaviour of a replica that answers with these chunks, `seconds` apart."""

    async def behave(request: specialist_pb2.GenerateRequest, context: Context) -> None:
        await context.write(accepted(lane, seed=request.seed if request.HasField("seed") else 4711))
        for text in texts:
            if seconds:
                await asyncio.sleep(seconds)
            await context.write(chunk(text))
        usage = specialist_pb2.Usage(finish_reason=finish, completion_tokens=len(texts))
        await context.write(specialist_pb2.GenerateEvent(usage=usage))

    return behave


def accepted(lane: str = PRIMARY, seed: int = 4711) -> specialist_pb2.GenerateEvent:
    accepted = specialist_pb2.Accepted(lane=specialist_pb2.Lane(specialist=lane, revision="r1"), seed=seed)
    return specialist_pb2.GenerateEvent(accepted=accepted)


def chunk(text: str) -> specialist_pb2.GenerateEvent:
    return specialist_pb2.GenerateEvent(chunk=specialist_pb2.Chunk(text=text, token_ids=[1]))


class Grader:
    """A verifier that passes answers that contain the given word."""

    def __init__(self, name: str, word: str) -> None:
        self.name = name
        self._word = word
        self.asked: list[tuple[str, str]] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.says: Outcome | None = None
        self.closed = 0

    async def verify(self, question: str, answer: str) -> Verdict:
        self.asked.append((question, answer))
        await self.go_on.wait()
        return Verdict(self.says or ("passed" if self._word in answer else "failed"))

    async def close(self) -> None:
        self.closed += 1


@dataclass
class RecordedEvents:
    judgements: list[tuple[str, str, Outcome]] = field(default_factory=list)
    comparisons: list[operator.Comparison] = field(default_factory=list)
    evaluated: list[tuple[str, Outcome]] = field(default_factory=list)
    judged: list[tuple[str, JudgedAnswer]] = field(default_factory=list)

    def answer_evaluated(self, receipt: wire.Receipt, judged: JudgedAnswer) -> None:
        self.evaluated.append((receipt.request_id, judged.outcome))

    def lane_judged(self, lane_id: str, specialist: str, judged: JudgedAnswer) -> None:
        self.judged.append((lane_id, judged))

    def lane_evaluated(self, lane_id: str, specialist: str, outcome: Outcome, verifier: str) -> None:
        self.judgements.append((lane_id, specialist, outcome))

    def compared(self, comparison: operator.Comparison, tenant: str, question: str) -> None:
        self.comparisons.append(comparison)


class ReceiptWriter:
    """A fake writer of the primary's receipt."""

    def __init__(self, receipt: wire.Receipt) -> None:
        self.receipt = receipt

    def accepted(self, accepted: wire.Accepted) -> bytes:
        self.receipt.accepted.CopyFrom(accepted)
        self.receipt.lane.CopyFrom(accepted.lane)
        event: bytes = wire.InferEvent(routed=self.receipt).SerializeToString()
        return event

    def first_chunk(self, num_tokens: int) -> None: ...

    def next_chunk(self, num_tokens: int) -> None: ...

    def finished(self, usage: wire.Usage) -> None:
        self.receipt.usage.CopyFrom(usage)


def candidate(specialist: str = PRIMARY, **fields: Any) -> Candidate:
    return Candidate(**{"specialist": specialist, "lane_id": LANES[specialist], **fields})


def order(specialist: str = SHADOW, why: Any = "fresh_lane", **fields: Any) -> ShadowOrder:
    return ShadowOrder(candidate(specialist, **fields), why)


class ShadowHarness:
    def __init__(self, ensemble: Ensemble, addresses: Mapping[str, Sequence[str]], **bounds: Any) -> None:
        self.fleet = Fleet(ensemble, addresses, SystemClock(), Random(0), open_transport())
        self.events = RecordedEvents()
        self.grader, self.shadow_grader = Grader("good", "good"), Grader("fine", "fine")
        self.verifiers = VerifierSet({PRIMARY: self.grader, SHADOW: self.shadow_grader})
        rules = load_evaluation_rules(ensemble, self.verifiers)
        self.evaluation = EvaluationQueue(self.events, lambda: 1_700_000_000_000, rules, **bounds)
        self.shadows = ShadowDispatcher(self.fleet.replica_sets, Random(0), open_transport(), ensemble, **bounds)
        self.num_asked = 0

    def make_task(self, shadow_order: ShadowOrder | None = None, text: str = "why?", **fields: Any) -> ShadowTask:
        def compose(seconds: float) -> specialist_pb2.GenerateRequest:
            return specialist_pb2.GenerateRequest(
                request_id="r-1",
                text=text,
                sampling=specialist_pb2.Sampling(temperature=0.5, num_logprobs=3),
                timeout_ms=round(seconds * 1000),
                tenant_salt=b"salt",
                max_tokens=2000,
                priority=7,
            )

        return ShadowTask(
            **{
                "order": shadow_order or order(),
                "num_bytes": len(text),
                "compose": compose,
                "trace": lambda: OutgoingTrace((("traceparent", "00-1-2-00"),), ""),
                "may_answer": lambda _: True,
                "content": text.encode,
                **fields,
            }
        )

    async def answer(
        self, write: Write, task: ShadowTask | ChooseShadow | None = None, *, sample: bool = True, text: str = "why?"
    ) -> wire.Receipt:
        """Serve a request as the router does. Return its receipt."""
        self.num_asked += 1
        receipt = wire.Receipt(request_id=f"r-{self.num_asked}", specialist=PRIMARY)
        receipt.decision.primary = PRIMARY
        plan = DispatchPlan((candidate(),), None, sample, wire.Between())
        tap = AnswerTap(self.evaluation, self.shadows, write, plan, question=text)
        if task is not None:
            planned = task.order if isinstance(task, ShadowTask) else ShadowOrder(Candidate(""), "rule_routed")
            tap.ordered, tap.shadow = OrderedShadow(planned, self.shadows.counters), task
        with tap:
            await self._relay(text, tap.write, ReceiptWriter(receipt))
            tap.answered()
            if tap.ordered is not None:
                tap.ordered.write(receipt)
            tap.finished(receipt)
        self.shadows.answered("")
        return receipt

    async def _relay(self, text: str, write: Write, writer: ReceiptWriter) -> None:
        lane = self.fleet.replica_sets[PRIMARY]
        replica = lane.choose((), b"", (), Random(0), healthy=True)
        assert replica is not None
        request = specialist_pb2.GenerateRequest(text=text).SerializeToString()
        with ReplicaAttempt(replica) as attempt:
            attempt.call = replica.channel.stream("/octet.v1.Specialist/Generate", request, timeout=30)
            await relay(attempt, write, writer)

    async def ask(self, task: ShadowTask | ChooseShadow | None = None, **options: Any) -> list[bytes]:
        """Serve a request. Return every event of the primary's stream."""
        events: list[bytes] = []

        async def write(raw: bytes) -> None:
            events.append(raw)

        await self.answer(write, task, **options)
        return events

    async def until(self, condition: Callable[[], object], seconds: float = PATIENCE) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.005)

    async def send_last_report(self, spy: SpyReplica, **report: Any) -> None:
        """Make the shadow's replica send this load report and no later one."""
        spy.last_report = specialist_pb2.LoadReport(**{"max_running": 8, **report})
        (replica,) = self.fleet.replica_sets[SHADOW].replicas.values()
        await self.until(lambda: replica.report == spy.last_report)

    async def settled(self) -> None:
        """Wait until no shadow is in flight, every answer is evaluated, and every reserved byte is released."""
        await self.until(lambda: not self.shadows.num_inflight and not self.evaluation.num_waiting)
        await self.until(lambda: not self.evaluation.budget.taken and not self.shadows.byte_budget.taken)

    def check_untouched(self) -> None:
        """Check that shadows have affected neither breakers nor retry budgets."""
        for lane in self.fleet.replica_sets.values():
            assert lane.retry_budget.tokens == lane.dispatch.retry_burst
            for replica in lane.replicas.values():
                assert replica.breaker.state == "closed"
                assert not replica.breaker._num_failures
                assert not replica.inflight

    def check_sums(self) -> None:
        counters = self.shadows.counters
        ended = counters.answered + counters.shed + counters.failed
        assert counters.ordered == ended + self.shadows.num_inflight


def ensemble_of(shadow: ShadowConfig | None = None, correctness: CorrectnessConfig | None = None) -> Ensemble:
    return Ensemble(
        specialists=tuple(SpecialistConfig(name, max_running=8) for name in (PRIMARY, SHADOW)),
        dispatch=DISPATCH,
        shadow=shadow or ShadowConfig(),
        correctness=correctness or CorrectnessConfig(),
    )


@asynccontextmanager
async def running_shadows(
    primary: Behaviour | None = None,
    shadow: Behaviour | None = None,
    *,
    correctness: CorrectnessConfig | None = None,
    bounds: Mapping[str, int] | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[ShadowHarness, SpyReplica, SpyReplica]]:
    """Run a primary and a shadow. `settings` are fields of ShadowConfig."""
    async with AsyncExitStack() as stack:
        spies = [
            await stack.enter_async_context(running_spy(primary or answering("all ", "good"))),
            await stack.enter_async_context(running_spy(shadow or answering("all ", "good", lane=SHADOW))),
        ]
        addresses = {PRIMARY: [spies[0].address], SHADOW: [spies[1].address]}
        ensemble = ensemble_of(replace(ShadowConfig(), **settings), correctness)
        harness = ShadowHarness(ensemble, addresses, **(bounds or {}))
        await harness.fleet.start()
        harness.evaluation.start()
        try:
            replicas = harness.fleet.replicas
            await harness.until(lambda: all(each.is_usable and each.report is not None for each in replicas))
            yield harness, spies[0], spies[1]
        finally:
            await harness.shadows.close()
            await harness.evaluation.close()
            await harness.fleet.close()
