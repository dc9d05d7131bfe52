"""One request from its decision to its answer, with everything that stands in between and goes along."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

from octet.clock import Clock
from octet.rpc.refusal import Refusal
from octet.v1 import inference_pb2 as wire
from router.after.aftermath import Aftermath
from router.between.plan import Plan, plan
from router.between.standing import Standing
from router.between.way import Way
from router.decide.compose import replica_request
from router.decide.decider import Decider
from router.decide.decision import Decision
from router.decide.policy import Policy
from router.dispatch.dispatcher import Dispatcher, Errand
from router.dispatch.leg import Leg
from router.dispatch.live import Live
from router.dispatch.record import Record
from router.dispatch.relay import Write
from router.dispatch.token_counter import Question, TokenCounter
from router.observe.observers import Observers
from router.receipts.receipt import ReceiptDraft
from router.reception.ask import Ask
from router.reception.content import ContentDigest
from router.reception.trace import Tracer
from router.refusals import no_specialist
from router.replicas.fleet import Fleet
from router.replicas.replica import Replica
from router.shadow.beside import Beside
from router.shadow.errand import ShadowErrand
from router.shadow.shadows import Shadows


@dataclass(frozen=True, slots=True)
class Call:
    """A caller that waits for an answer."""

    ask: Ask
    policy: Policy
    """As it was when the request came."""
    draft: ReceiptDraft
    live: Live
    write: Write
    finish: Callable[[], Awaitable[wire.Receipt]]
    """The answer is whole: its receipt is kept and written."""
    gone: Callable[[], Refusal]
    """Why the caller is not there any more."""


class Controls(Protocol):
    @property
    def standing(self) -> Standing:
        """In force now."""

    def served(self, specialist: str, intent: str) -> None:
        """The specialist was asked, and had room."""

    def refused(self, specialist: str, intent: str) -> None:
        """It had none."""


class Answering:
    """Belongs to the event loop."""

    def __init__(
        self,
        decider: Decider,
        control: Controls,
        fleet: Fleet,
        dispatcher: Dispatcher,
        counter: TokenCounter,
        aftermath: Aftermath,
        shadows: Shadows,
        tracer: Tracer,
        observers: Observers,
        clock: Clock,
        dice: Callable[[], float],
    ) -> None:
        """`dice` draws from [0, 1)."""
        self._decider = decider
        self._control = control
        self._fleet = fleet
        self._dispatcher = dispatcher
        self._counter = counter
        self._aftermath = aftermath
        self._shadows = shadows
        self._tracer = tracer
        self._observers = observers
        self._clock = clock
        self._dice = dice

    async def plan(self, ask: Ask, policy: Policy, draft: ReceiptDraft) -> "Planned":
        """Raises Refusal for names that nobody knows."""
        decision = await self._decider.decide(ask, policy)
        draft.decided(decision, self._clock.now())
        if not decision.primary:
            return Planned(decision, None, no_specialist(decision))
        made = plan(ask, decision, policy.ensemble, self._control.standing, self._dice)
        draft.planned(made.between)
        return Planned(decision, made, made.refusal)

    async def answer(self, call: Call) -> None:
        """Returns when the caller has it all. Raises Refusal, CallerGone."""
        planned = await self.plan(call.ask, call.policy, call.draft)
        if planned.plan is None or planned.refusal is not None:
            raise planned.refusal or no_specialist(planned.decision)
        content = ContentDigest(call.ask)
        beside = self._beside(call, planned, planned.plan, content)
        record = Record(call.draft, self._clock, self._observers)
        try:
            with beside or nullcontext():
                write = call.write if beside is None else beside.write
                await self._dispatcher.answer(self._errand(call, planned, planned.plan, record, write, content))
                receipt = await call.finish()
                if beside is not None:
                    beside.finished(receipt, call.ask.text)
        finally:
            self._count(call.ask, planned.plan.ways[0].specialist, record)
        self._shadows.answered()

    async def count(self, ask: Ask, policy: Policy, draft: ReceiptDraft, live: Live) -> wire.CountResponse:
        """The tokens of the prompt, for whoever would answer now. Raises Refusal."""
        planned = await self.plan(ask, policy, draft)
        if planned.plan is None or planned.refusal is not None:
            raise planned.refusal or no_specialist(planned.decision)
        ways = planned.plan.ways
        self._dispatcher.quarantine.check(ContentDigest(ask))
        return await self._counter.count(
            Question(
                live=live,
                legs=tuple(self._leg(ask, way) for way in ways),
                session=ask.session.key,
                request_for=_composer(ask, policy, planned.decision, ways),
                trace=lambda: self._tracer.headers(ask.trace),
            )
        )

    def _count(self, ask: Ask, specialist: str, record: Record) -> None:
        """What was asked of the specialist, and whether it had room."""
        if specialist in record.full:
            self._control.refused(specialist, ask.intent)
        elif record.was_accepted:
            self._control.served(specialist, ask.intent)

    def _errand(
        self, call: Call, planned: "Planned", made: Plan, record: Record, write: Write, content: ContentDigest
    ) -> Errand:
        return Errand(
            live=call.live,
            legs=tuple(self._leg(call.ask, way) for way in made.ways),
            session=call.ask.session.key,
            request_for=_composer(call.ask, call.policy, planned.decision, made.ways),
            trace=lambda: self._tracer.hop(call.ask.trace),
            gone=call.gone,
            record=record,
            write=write,
            content=content,
        )

    def _leg(self, ask: Ask, way: Way) -> Leg:
        def fits(replica: Replica) -> bool:
            load = replica.load
            if load is None:
                return way.fits(replica.name, "", ())
            return way.fits(replica.name, load.revision, load.adapters)

        return Leg(self._fleet.lanes[way.specialist], way.adapters, bool(ask.adapters), fits)

    def _beside(self, call: Call, planned: "Planned", made: Plan, content: ContentDigest) -> Beside | None:
        """A suspect gets no shadow: it would put two replicas at risk."""
        if not made.sample and made.shadow is None:
            return None
        errand = None
        if made.shadow is not None and not self._dispatcher.quarantine.suspects(content):
            ask, order = call.ask, made.shadow
            config = call.policy.ensemble.specialist(order.way.specialist)
            errand = ShadowErrand(
                order=order,
                num_bytes=ask.num_bytes,
                compose=lambda seconds: replica_request(ask, planned.decision, config, order.way.adapters, seconds),
                trace=lambda: self._tracer.hop(ask.trace),
                may_answer=lambda replica: replica.name not in order.way.shut,
                content=content,
            )
        return Beside(self._aftermath, self._shadows, call.write, made.ways, sample=made.sample, errand=errand)


@dataclass(frozen=True, slots=True)
class Planned:
    decision: Decision
    plan: Plan | None
    """None where nobody should answer."""
    refusal: Refusal | None
    """Why nobody is to answer."""


def _composer(ask: Ask, policy: Policy, decision: Decision, ways: Sequence[Way]) -> Callable[[str, float], bytes]:
    """What the replica of a specialist is asked, with so many seconds left."""
    by_name = {way.specialist: way for way in ways}

    def request_for(specialist: str, seconds_left: float) -> bytes:
        config = policy.ensemble.specialist(specialist)
        request = replica_request(ask, decision, config, by_name[specialist].adapters, seconds_left)
        return bytes(request.SerializeToString())

    return request_for
