"""Compares where requests went with the specialists and escalation levels of that time."""

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import grpc

from admission.demand import DemandClass
from admission.escalation import KnobSteps
from admission.knobs import UNSPECIFIED_INTENT
from octet.config.ensemble import Ensemble, EscalationConfig, IntentConfig
from octet.telemetry.outcomes import CAPACITY_REASONS
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire
from router.control.control import ControlPlane
from router.control.demand import DemandOutcome
from router.dispatch.replicas.replica import ReplicaSet
from router.request import Request
from router.routing.dispatch_plan import DispatchPlan
from router.serving import RequestPipeline
from tests.simulation.ensemble import CallRecord
from tests.simulation.laws.checker import LawChecker
from tests.simulation.script import REPLICA_FAULTS, Script


@dataclass(frozen=True, slots=True)
class Moment:
    """The status of the fleet from `at` until the next Moment."""

    at: float
    serves: frozenset[str]
    steps: tuple[tuple[str, KnobSteps], ...]

    def raised(self, specialist: str) -> KnobSteps:
        return dict(self.steps).get(specialist, KnobSteps())


@dataclass(frozen=True, slots=True)
class KnobLevels:
    """The confidence threshold and the priority floor after each step of escalation, computed without the router's
    code."""

    rules: EscalationConfig
    threshold: float
    """The configured threshold."""

    def at(self, steps: KnobSteps) -> tuple[float, int]:
        """Return the threshold and the floor after these steps."""
        thresholds = [self.threshold]
        while thresholds[-1] < self.rules.max_threshold - 1e-9:
            thresholds.append(min(thresholds[-1] + self.rules.threshold_step, self.rules.max_threshold))
        threshold = thresholds[min(steps.threshold, len(thresholds) - 1)]
        return threshold, min(steps.floor * self.rules.floor_step, self.rules.max_floor)


def knob_levels_of(ensemble: Ensemble) -> KnobLevels:
    """Return the levels for requests without an intent. Scripts contain only such requests."""
    base = next(
        (intent for intent in ensemble.intents if intent.name == UNSPECIFIED_INTENT), IntentConfig(UNSPECIFIED_INTENT)
    )
    return KnobLevels(ensemble.escalation, base.shadow_threshold)


class StatusHistory:
    """The history of the published fleet status."""

    def __init__(self, control: ControlPlane, checker: LawChecker, now: Callable[[], float]) -> None:
        self._control = control
        self._checker = checker
        self._now = now
        self._moments = [self._look()]
        watched: Any = control
        publish = control._publish_status

        def watched_publish(at: float | None = None) -> None:
            publish(at)
            self._note()

        watched._publish_status = watched_publish

    def between(self, start: float, end: float) -> list[Moment]:
        """Return all moments that overlap the interval."""
        return list(self._between(start, end))

    def _between(self, start: float, end: float) -> Iterator[Moment]:
        ends = [*(moment.at for moment in self._moments[1:]), float("inf")]
        for moment, until in zip(self._moments, ends, strict=True):
            if moment.at <= end and until >= start:
                yield moment

    def _look(self) -> Moment:
        standing = self._control.fleet_status
        serves = frozenset(name for name, each in standing.specialists.items() if each.serves)
        ladders = self._control.escalation().items()
        steps = tuple((name, ladder.steps) for (intent, name), ladder in ladders if intent == UNSPECIFIED_INTENT)
        return Moment(self._now(), serves, steps)

    def _note(self) -> None:
        found, last = self._look(), self._moments[-1]
        if (found.serves, found.steps) != (last.serves, last.steps):
            self._moments.append(found)
            self._checker.note(f"serving {sorted(found.serves)}, steps {found.steps}")


_DONE_SECONDS = 0.02


class DispatchLaws:
    def __init__(
        self,
        ensemble: Ensemble,
        script: Script,
        status_history: StatusHistory,
        knob_levels: KnobLevels,
        checker: LawChecker,
    ) -> None:
        self._ensemble = ensemble
        self._replicas = script.setup.replicas
        self._is_sound = _is_sound(script)
        self._status_history = status_history
        self._knob_levels = knob_levels
        self._checker = checker
        self._without_room: dict[str, str] = {}
        """The specialist that each refusal counts against, by request id."""
        self._withheld: dict[str, str] = {}
        """The specialist from which escalation kept a request away, by request id."""
        self._hung: dict[str, frozenset[str]] = {}
        """The replicas that were hung when a request's last attempt had ended, by request id."""
        self._had_room: dict[str, frozenset[str]] = {}
        """The specialists with room when a request was dispatched, by request id."""

    def watch(self, answering: RequestPipeline) -> None:
        """Record which specialist each refusal is counted against, and which had room."""
        watched: Any = answering
        answer, control, dispatcher = watched.answer, watched.control, watched.dispatcher
        record, dispatch = control.record_demand, dispatcher.answer
        current: ContextVar[str] = ContextVar("current request", default="")

        async def watched_answer(request: Request, *arguments: Any) -> None:
            token = current.set(request.request_id)
            try:
                await answer(request, *arguments)
            finally:
                current.reset(token)

        def watched_record(specialist: str, intent: str, kind: DemandClass, outcome: DemandOutcome) -> None:
            if outcome == "refused":
                self._without_room[current.get()] = specialist
            elif outcome == "withheld":
                self._withheld[current.get()] = specialist
            record(specialist, intent, kind, outcome)

        async def watched_dispatch(request: Request, plan: DispatchPlan, *arguments: Any) -> None:
            sets = dispatcher.fleet.replica_sets.values()
            self._had_room[request.request_id] = frozenset(each.specialist for each in sets if has_room(each))
            try:
                await dispatch(request, plan, *arguments)
                self._checker.seen["answered below a floor"] += plan.otherwise is not None
            finally:
                replicas = dispatcher.fleet.replicas
                self._hung[request.request_id] = frozenset(each.name for each in replicas if each.is_hung)

        watched.answer, control.record_demand, dispatcher.answer = watched_answer, watched_record, watched_dispatch

    def ended(self, record: CallRecord) -> None:
        receipt = record.receipt or (record.routed[-1] if record.routed else None)
        if receipt is None or not receipt.decision.primary or record.ended is None:
            return
        moments = self._status_history.between(record.began, record.ended)
        self._followed(record, receipt)
        self._named(record, receipt)
        self._served(record, receipt, moments)
        self._of_priority(record, receipt, moments)
        self._relieved(record, receipt, moments)
        self._found_room(record, receipt)
        if record.code is grpc.StatusCode.OK and record.receipt_at is not None:
            is_soon = record.ended - record.receipt_at <= _DONE_SECONDS + record.ask.pause
            self._require(is_soon, "a complete answer ends its request immediately", receipt)

    def _chain(self, record: CallRecord, receipt: wire.Receipt) -> list[str]:
        """Return the specialists that may answer, in no particular order."""
        decision = receipt.decision
        fallback = "" if record.ask.force else self._ensemble.specialist(decision.primary).fallback or ""
        return [name for name in dict.fromkeys((decision.primary, decision.second_choice, fallback)) if name]

    def _followed(self, record: CallRecord, receipt: wire.Receipt) -> None:
        asked = [attempt.specialist for attempt in receipt.attempts]
        is_chosen = set(asked) <= set(self._chain(record, receipt)) and len(set(asked)) <= 2
        self._require(is_chosen, "only the chosen specialist and one fallback are asked", receipt, asked)
        full: set[str] = set()
        for attempt in receipt.attempts:
            is_new = attempt.replica not in full
            self._require(is_new, "a replica that had no room is not asked again", receipt, attempt.replica)
            full |= {attempt.replica} if attempt.reason in CAPACITY_REASONS else set()

    def _named(self, record: CallRecord, receipt: wire.Receipt) -> None:
        if record.code is not grpc.StatusCode.OK:
            return
        primary, between = receipt.decision.primary, receipt.between
        instead = between.instead_of == primary or between.spilled
        law = "the receipt names a fallback if and only if one answered"
        self._require(instead == (receipt.specialist != primary), law, receipt, between.instead_of, between.spilled)

    def _served(self, record: CallRecord, receipt: wire.Receipt, moments: list[Moment]) -> None:
        for attempt in receipt.attempts:
            is_served = any(attempt.specialist in moment.serves for moment in moments)
            self._require(is_served, "a demoted specialist answers no request", receipt, attempt.specialist)
        if record.error is None or record.error.reason != error_pb2.ERROR_REASON_DEMOTED:
            return
        chain = set(self._chain(record, receipt)[: 1 if record.ask.adapters else None])
        is_so = any(not chain & moment.serves for moment in moments)
        self._require(is_so, "no request is refused as unserved while a specialist serves", receipt, chain)

    def _of_priority(self, record: CallRecord, receipt: wire.Receipt, moments: list[Moment]) -> None:
        priority = record.ask.priority
        for name in {attempt.specialist for attempt in receipt.attempts}:
            may = any(self._floor(moment, name) <= priority for moment in moments)
            self._require(may, "no request below the floor is answered", receipt, name, priority)
        if record.error is not None and record.error.reason == error_pb2.ERROR_REASON_BELOW_FLOOR:
            chain = self._chain(record, receipt)
            may = any(self._floor(moment, name) > priority for moment in moments for name in chain)
            self._require(may, "only requests below the priority floor are turned away", receipt, priority)

    def _relieved(self, record: CallRecord, receipt: wire.Receipt, moments: list[Moment]) -> None:
        """Check to which specialist the first attempt went. It must be the second choice if escalation moves the
        request there. Otherwise it must be the primary, unless the primary was demoted."""
        decision = receipt.decision
        if not receipt.attempts or not self._is_sound(decision.primary):
            return
        primary, second, first = decision.primary, decision.second_choice, receipt.attempts[0].specialist
        unsure = [self._is_unsure(decision, moment) and self._is_at_ease(second, moment) for moment in moments]
        if first != primary:
            is_below = any(self._floor(moment, primary) > record.ask.priority for moment in moments)
            may = any(unsure) or is_below or any(primary not in moment.serves for moment in moments)
            self._require(may, "escalation moves only uncertain requests, and only after refusals", receipt, first)
        elif all(unsure) and self._is_sound(second) and second in self._had_room[receipt.request_id]:
            may = any(not {primary, second} <= moment.serves for moment in moments)
            self._require(may, "escalation moves requests to the second choice", receipt, first)

    def _is_unsure(self, decision: wire.Decision, moment: Moment) -> bool:
        is_unsure = decision.HasField("confidence") and decision.confidence < self._threshold(moment, decision.primary)
        return is_unsure and self._threshold(moment, decision.primary) > self._knob_levels.threshold

    def _is_at_ease(self, name: str, moment: Moment) -> bool:
        return bool(name) and self._threshold(moment, name) == self._knob_levels.threshold

    def _found_room(self, record: CallRecord, receipt: wire.Receipt) -> None:
        attempts, against = receipt.attempts, self._without_room.get(record.ask.request_id)
        if against is not None and record.receipt is not None:  # A caller that left early did not receive all attempts.
            theirs = [attempt for attempt in attempts if attempt.specialist == against]
            full = [index for index, attempt in enumerate(theirs) if attempt.reason in CAPACITY_REASONS]
            took = {routed.replica for routed in record.routed}
            had_none = full and not any(attempt.replica in took for attempt in theirs[full[-1] + 1 :])
            self._require(bool(had_none), "a specialist has room while one of its replicas has", receipt, against)
        if record.routed or record.error is None or not attempts or record.error.reason not in CAPACITY_REASONS:
            return
        request_id = record.ask.request_id
        first_choice = against or self._withheld.get(request_id)
        # A deadline that even an idle replica would miss is no lack of room.
        is_hopeless = not record.error.HasField("retry_after_ms")
        is_counted = first_choice is not None or is_hopeless or not self._is_sound(attempts[0].specialist)
        self._require(is_counted, "every request that finds no room is counted", receipt)
        if len(attempts) >= self._ensemble.dispatch.max_attempts or any(
            each.reason not in CAPACITY_REASONS for each in attempts
        ):
            return
        lead, asked = first_choice or attempts[0].specialist, {attempt.replica for attempt in attempts}
        left = {f"{lead}-{index}" for index in range(self._replicas[lead])} - asked - self._hung[request_id]
        self._require(not left, "no request is refused while an untried replica is left", receipt, left)

    def _threshold(self, moment: Moment, name: str) -> float:
        return self._knob_levels.at(moment.raised(name))[0]

    def _floor(self, moment: Moment, name: str) -> int:
        return self._knob_levels.at(moment.raised(name))[1]

    def _require(self, holds: bool, law: str, receipt: wire.Receipt, *about: object) -> None:
        self._checker.require(holds, law, receipt.request_id, *about)


def has_room(replica_set: ReplicaSet) -> bool:
    awake = [each for each in replica_set.replicas.values() if not each.is_hung]
    found = [each.snapshot(replica_set.dispatch.stale_seconds) for each in awake]
    return any(each.has_capacity and not each.is_closed and not each.is_broken for each in found)


def _is_sound(script: Script) -> Callable[[str], bool]:
    """Return a function that tells whether the script leaves a specialist's replicas undisturbed."""
    setup = script.setup
    disturbed = {fault.target.rpartition("-")[0] for fault in script.faults if fault.kind in REPLICA_FAULTS}
    is_shaky = bool(setup.fault_rate or {*setup.fault_points} - {"store.away"})
    return lambda name: not is_shaky and name not in disturbed
