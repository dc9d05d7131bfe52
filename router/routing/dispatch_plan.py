"""Dispatch planning: choose the specialists and lanes that serve a routed request, and whether to shadow it.

A plan depends only on the request, the configuration, an immutable snapshot of the fleet (FleetStatus) and random
numbers. The RPCs Route and Generate plan with the same function.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from admission.demand import LOWEST_CLASS, DemandClass
from admission.knobs import ESCALATION, UNSPECIFIED_INTENT
from octet.config.ensemble import Ensemble, IntentConfig, SpecialistConfig
from octet.rpc.refusal import Refusal
from octet.v1 import inference_pb2 as wire
from router.receipts import clip_bytes, clip_list
from router.refusals import below_priority_floor, no_fit_replica, specialist_demoted
from router.request import Request
from router.routing.classifier.base import Distribution
from router.routing.policy import configured_fallbacks, limit_adapters

CountedReason = Literal[
    "low_confidence", "rule_routed"
]  # shadows for other reasons evaluate a lane: no credit is needed
ShadowReason = CountedReason | Literal["fresh_lane", "demoted"]
UniformSource = Callable[[], float]  # draws from [0, 1)
MAX_BETWEEN_BYTES = 400  # maximum bytes of the plan on a receipt
MAX_SHADOW_NAME = _MAX_NAME = 64
_MAX_WHY = 112  # maximum bytes of `why` and `lead` together
_TAG_BYTES = 2
_MAX_KNOBS_BY = 24
_MAX_ADAPTER = 32
_MAX_ADAPTERS = 40


@dataclass(frozen=True, slots=True)
class IntentKnobs:
    threshold: float
    floor: int
    by: str = ""  # the last setter of a knob: "" for the configuration, `escalation` or `operator`. Callers may see it.
    floor_by: str = ""
    is_escalated: bool = False
    """Escalation moves low-confidence requests to their second choice. An operator's threshold affects only shadows."""


@dataclass(frozen=True, slots=True)
class LaneStatus:
    number: int
    lane_id: str = ""
    """Identifies the lane's history on all routers that share the store; empty until the replicas report a revision."""
    adapters: tuple[tuple[str, str], ...] = ()
    """For each adapter, in the order of application, the names that callers and replicas use."""
    revision: str = ""  # the revision that replicas must have; empty for any
    fresh: bool = False  # whether its history is too short to be trusted
    unfit: frozenset[str] = frozenset()
    """Names of replicas with a different model, or with different content under an adapter's name."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.adapters)

    @property
    def load_names(self) -> tuple[str, ...]:
        return tuple(load_name for _, load_name in self.adapters)


@dataclass(frozen=True, slots=True)
class SpecialistStatus:
    name: str
    lane: LaneStatus  # the serving lane, even while the specialist is demoted
    correctness: str = "closed"  # closed, shadow_only, recovering, held_open or held_closed
    serves: bool = True
    reason: str = ""  # why it does not serve, for callers
    is_last_resort: bool = False  # whether it answers nevertheless if nothing else can
    is_reachable: bool = True  # whether a replica is reachable
    unfit_reason: str = ""
    """The reason, for callers, why no reachable replica can answer; empty if one can or none is reachable."""
    candidate: LaneStatus | None = None
    is_suspect: bool = False  # whether one of its newest judged answers is degenerate: all its answers are evaluated
    adapter_names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Maps each adapter that callers may name to the name that replicas use."""
    is_learning: bool = False  # whether its floor is being learned, so that more of its answers are judged


@dataclass(frozen=True, slots=True)
class FleetStatus:
    specialists: Mapping[str, SpecialistStatus]
    configured_knobs: Mapping[str, IntentKnobs]  # by intent
    knob_overrides: Mapping[tuple[str, str], IntentKnobs] = field(default_factory=lambda: MappingProxyType({}))
    """By intent and specialist."""
    drained: frozenset[str] = frozenset()  # names of replicas that get no new requests

    @classmethod
    def initial(cls, ensemble: Ensemble) -> "FleetStatus":
        specialists = {each.name: configured_status(each) for each in ensemble.specialists}
        return cls(specialists, configured_knobs(ensemble.intents))

    def knobs(self, intent: str, specialist: str) -> IntentKnobs:
        intent = intent or UNSPECIFIED_INTENT
        override = self.knob_overrides.get((intent, specialist))
        return override or self.configured_knobs.get(intent) or _intent_knobs(IntentConfig(intent))

    def may_answer(self, replica: str, revision: str, specialist: str) -> bool:
        """Whether a replica may get new requests for the specialist's serving lane. `revision` is "" if unknown."""
        lane = self.specialists[specialist].lane
        is_excluded = replica in self.drained or replica in lane.unfit
        return not is_excluded and (not lane.revision or not revision or revision == lane.revision)


def configured_status(specialist: SpecialistConfig) -> SpecialistStatus:
    """Return the specialist's status before any replica has reported. Adapters have their configured names."""
    adapters = tuple((name, name) for name in specialist.use_adapters)
    names = {name: name for name in specialist.adapters}
    return SpecialistStatus(specialist.name, LaneStatus(0, adapters=adapters), adapter_names=names)


def configured_knobs(intents: Iterable[IntentConfig]) -> dict[str, IntentKnobs]:
    unspecified = IntentConfig(UNSPECIFIED_INTENT)
    return {intent.name: _intent_knobs(intent) for intent in (unspecified, *intents)}


def _intent_knobs(intent: IntentConfig) -> IntentKnobs:
    return IntentKnobs(intent.shadow_threshold, intent.priority_floor)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A specialist, on one of its lanes, that may serve a request."""

    specialist: str
    adapters: tuple[str, ...] = ()  # the names that replicas use for its adapters
    names: tuple[str, ...] = ()  # the names that callers use for the same adapters
    lane_id: str = ""  # the lane that the answer counts for; empty when the caller chose the adapters
    revision: str = ""  # the revision that replicas must have; empty for any
    fresh: bool = False
    excluded: frozenset[str] = frozenset()  # names of replicas that must not get the request
    is_bare: bool = False  # whether the specialist answers without its system prompt

    @property
    def experts(self) -> tuple[str, ...]:
        """The specialist and its adapters, by the names that callers use; none for a bare model."""
        return () if self.is_bare else (self.specialist, *self.names)

    def fits(self, replica: str, revision: str, adapters: Container[str]) -> bool:
        """Whether the replica may get the request. `revision` is "" if unknown. Adapters that the caller named are not
        checked, because the replica itself refuses unknown ones."""
        if replica in self.excluded or (self.revision and revision and revision != self.revision):
            return False
        return not self.lane_id or all(adapter in adapters for adapter in self.adapters)


@dataclass(frozen=True, slots=True)
class ShadowOrder:
    candidate: Candidate
    """Without a specialist, the classifier is asked while the answer is computed (`choose_shadow`)."""
    why: ShadowReason


def describe_order(order: ShadowOrder, target: wire.ShadowOrder) -> None:
    target.specialist = clip_bytes(order.candidate.specialist, _MAX_NAME)
    target.adapters[:] = clip_list(order.candidate.names, _MAX_ADAPTER, _MAX_ADAPTERS)
    target.why = order.why


@dataclass(frozen=True, slots=True)
class DispatchPlan:
    candidates: tuple[Candidate, ...]  # in order; empty when the request is refused
    shadow: ShadowOrder | None
    sample: bool  # whether the answer is evaluated
    between: wire.Between
    lead: str = ""  # the specialist whose knobs apply; empty if none serves
    demand: DemandClass = LOWEST_CLASS  # how the request counts as demand for `lead`
    is_offer: bool = False
    """Whether the request is kept away from `lead`, by escalation or by a floor. The first candidate is then the second
    choice, and is asked only while it has room."""
    is_withheld: bool = False  # whether escalation keeps the request away from `lead`
    refusal: Refusal | None = None
    otherwise: Refusal | None = None  # the refusal if no candidate has room; None for what the replicas said

    def candidate(self, specialist: str) -> Candidate:
        """Return the specialist's candidate; if the plan has none, a candidate without adapters."""
        return next((each for each in self.candidates if each.specialist == specialist), Candidate(specialist))


def plan_dispatch(request: Request, ensemble: Ensemble, status: FleetStatus, uniform: UniformSource) -> DispatchPlan:
    """Plan the dispatch of a request whose decision names a primary. An answer that may contain tool calls and an
    embedding are neither evaluated nor compared, because verifiers read only text."""
    return _Planning(request, ensemble, status).plan(uniform)


def choose_shadow(
    request: Request, ensemble: Ensemble, status: FleetStatus, distribution: Distribution
) -> ShadowOrder | None:
    """Return the order for the shadow of a request that was routed without the classifier, given the classifier's
    opinion; None if no other specialist serves."""
    candidate = _Planning(request, ensemble, status).best_other(distribution)
    return None if candidate is None else ShadowOrder(candidate, "rule_routed")


class _Planning:
    def __init__(self, request: Request, ensemble: Ensemble, status: FleetStatus) -> None:
        self.request = request
        self.decision = request.decision
        self.ensemble = ensemble
        self.status = status
        self.primary = status.specialists[self.decision.primary]

    def plan(self, uniform: UniformSource) -> DispatchPlan:
        request, primary = self.request, self.primary
        first, rejected = self._first_specialist()
        knobs = self.status.knobs(request.intent, first or primary.name)
        if not first:
            reason = primary.reason or primary.correctness
            refusal = specialist_demoted(primary.name, reason, rejected, forced=bool(request.force))
            return self._refuse(refusal, first, knobs)
        second = self._second_specialist(first)
        if request.priority < knobs.floor:
            return self._plan_below_floor(first, second, knobs, uniform)
        reasons = [self.status.specialists[name].unfit_reason for name in (first, second) if name]
        if all(reasons):
            return self._refuse(no_fit_replica(reasons), first, knobs)
        moved = self._can_move(first, second) and knobs.is_escalated and self._is_below(knobs.threshold)
        shadow = None if moved or not request.has_text_answer else self._order_shadow(first, knobs, uniform)
        order = (second, first) if moved else (first, second)
        return self._dispatch(order, first, knobs, shadow, uniform, self._why(first, knobs, moved))

    def _plan_below_floor(self, first: str, second: str, knobs: IntentKnobs, uniform: UniformSource) -> DispatchPlan:
        """Offer the request to the second choice; if there is none, or it has no room, the request is refused."""
        request, intent = self.request, self.request.intent or UNSPECIFIED_INTENT
        refusal = below_priority_floor(intent, first, knobs.floor, knobs.floor_by, request.priority)
        if not second or self.status.specialists[second].unfit_reason:
            return self._refuse(refusal, first, knobs)
        why = f"priority {request.priority} is below the floor {knobs.floor} of {first}"
        return replace(self._dispatch((second,), first, knobs, None, uniform, why), otherwise=refusal)

    def _dispatch(
        self,
        order: tuple[str, ...],
        lead: str,
        knobs: IntentKnobs,
        shadow: ShadowOrder | None,
        uniform: UniformSource,
        why: str,
    ) -> DispatchPlan:
        candidates = tuple(self._candidate(name) for name in order if name)
        between = self._between(order[0], candidates[0], shadow, knobs, why)
        sample = self.request.has_text_answer and self._is_sampled(candidates[0], shadow, uniform)
        demand, is_offer = self._demand(lead), order[0] != lead
        is_withheld = is_offer and self._is_withheld(knobs)
        return DispatchPlan(candidates, shadow, sample, between, lead, demand, is_offer, is_withheld)

    def _is_withheld(self, knobs: IntentKnobs) -> bool:
        """Whether escalation keeps the request away, and not a floor that is configured or set by an operator."""
        if self.request.priority >= knobs.floor:
            return True  # its confidence is below the raised threshold
        configured = self.status.configured_knobs.get(self.request.intent or UNSPECIFIED_INTENT)
        is_raised = configured is None or self.request.priority >= configured.floor
        return knobs.floor_by == ESCALATION and is_raised

    def _demand(self, lead: str) -> DemandClass:
        can_move = self._can_move(lead, self._second_specialist(lead))
        return DemandClass.of(self.request.priority, self.decision.confidence if can_move else None)

    def _first_specialist(self) -> tuple[str, list[str]]:
        """Return the specialist to ask ("" if none is suitable), and why others were rejected. The primary is asked if
        it serves, else its fallbacks (the intent's, then its own), else the second choice, else the primary if it is
        a last resort."""
        primary, rejected = self.primary, list[str]()
        if primary.serves:
            return primary.name, rejected
        for name in dict.fromkeys((*self._fallbacks(primary.name), self.decision.second_choice)):
            if not name or name == primary.name:
                continue
            objection = self._objection(name) or (self._absence(name) if primary.is_last_resort else "")
            if not objection:
                return name, rejected
            rejected.append(f"{name} cannot be the fallback: {objection}")
        return primary.name if primary.is_last_resort else "", rejected

    def _fallbacks(self, specialist: str) -> tuple[str, ...]:
        """Return the configured fallbacks; none if the caller forces specialists, and none for a bare model or an
        embedding: embeddings of different models cannot be compared."""
        is_bound = self.request.force or self.request.embed or self.decision.is_bare
        return () if is_bound else configured_fallbacks(specialist, self.request, self.ensemble)

    def _objection(self, name: str) -> str:
        fallback = self.status.specialists[name]
        if not fallback.serves:
            return fallback.reason or fallback.correctness
        missing = [adapter for adapter in self.request.adapters if adapter not in fallback.adapter_names]
        return f"it lacks the adapter {missing[0]!r}, which the caller named" if missing else ""

    def _absence(self, name: str) -> str:
        """Return why no replica of the specialist can answer; empty if one may."""
        status = self.status.specialists[name]
        return status.unfit_reason or ("" if status.is_reachable else "no replica is reachable")

    def _second_specialist(self, first: str) -> str:
        """Return the second choice if it differs from `first` and the primary, serves, and accepts the request's
        priority, else ""."""
        name = self.decision.second_choice
        if not name or name in (first, self.primary.name) or not self.status.specialists[name].serves:
            return ""
        return name if self.request.priority >= self.status.knobs(self.request.intent, name).floor else ""

    def _can_move(self, first: str, second: str) -> bool:
        """Whether escalation of `first` can move the request to the second choice if its confidence is low. It cannot
        if escalation also relieves the second choice."""
        is_relieved = bool(second) and self.status.knobs(self.request.intent, second).is_escalated
        return bool(second) and first == self.primary.name and not is_relieved

    def _is_below(self, threshold: float) -> bool:
        return self.decision.confidence is not None and self.decision.confidence < threshold

    def _candidate(self, specialist: str, lane: LaneStatus | None = None) -> Candidate:
        """Return the candidate with the caller's adapters, else the lane's, limited by `max_experts`. A bare model has
        none, and its answers count for no lane."""
        request, status = self.request, self.status.specialists[specialist]
        lane = lane or status.lane
        excluded = self.status.drained | lane.unfit
        if self.decision.is_bare:
            return Candidate(specialist, revision=lane.revision, excluded=excluded, is_bare=True)
        if request.adapters:
            names = limit_adapters(request.adapters, request.max_experts)
            adapters = tuple(status.adapter_names.get(name, name) for name in names)
            return Candidate(specialist, adapters, names, revision=lane.revision, excluded=excluded)
        names = limit_adapters(lane.names, request.max_experts)
        adapters = limit_adapters(lane.load_names, request.max_experts)
        is_whole = len(names) == len(lane.adapters)
        lane_id = lane.lane_id if is_whole else ""
        return Candidate(specialist, adapters, names, lane_id, lane.revision, lane.fresh and is_whole, excluded)

    def _order_shadow(self, first: str, knobs: IntentKnobs, uniform: UniformSource) -> ShadowOrder | None:
        """Return a shadow order for the first reason that applies, or None. Each reason has its own probability."""
        for rate, candidate, why in self._shadow_reasons(first, knobs):
            if (candidate.lane_id or not candidate.specialist) and (rate >= 1 or uniform() < rate):
                return ShadowOrder(candidate, why)
        return None

    def _shadow_reasons(self, first: str, knobs: IntentKnobs) -> Iterator[tuple[float, Candidate, ShadowReason]]:
        rates = self.ensemble.shadow
        primary, serving = self.primary, self.status.specialists[first]
        if primary is not serving:
            if primary.candidate is not None:
                yield rates.fresh_rate, self._candidate(primary.name, primary.candidate), "fresh_lane"
            yield rates.demoted_rate, self._candidate(primary.name), "demoted"
        if serving.candidate is not None:
            yield rates.fresh_rate, self._candidate(first, serving.candidate), "fresh_lane"
        other = self._other_specialist(first)
        if other:
            if serving.lane.fresh:
                yield rates.fresh_rate, self._candidate(other), "fresh_lane"
            if primary is serving and self._is_below(knobs.threshold):
                yield 1.0, self._candidate(other), "low_confidence"
        if primary is serving and self.decision.source in ("rule", "intent") and not self.request.adapters:
            intent = self.request.intent or UNSPECIFIED_INTENT
            rate = next((each.shadow_rate for each in self.ensemble.intents if each.name == intent), 0.0)
            if rate:
                yield rate, Candidate(""), "rule_routed"

    def best_other(self, distribution: Distribution) -> Candidate | None:
        """Return the likeliest specialist that serves, except the primary and those that the caller excludes."""
        for name, _ in distribution.scores:
            status = self.status.specialists.get(name)
            if status is not None and status.serves and name not in (self.primary.name, *self.request.exclude):
                candidate = self._candidate(name)
                return candidate if candidate.lane_id else None
        return None

    def _other_specialist(self, first: str) -> str:
        """Return a serving specialist to compare with `first`; "" if there is none."""
        for name in (self.decision.second_choice, *self._fallbacks(first)):
            if name and name not in (first, self.primary.name) and self.status.specialists[name].serves:
                return name
        return ""

    def _is_sampled(self, first: Candidate, shadow: ShadowOrder | None, uniform: UniformSource) -> bool:
        """Whether to evaluate the answer: always if there is a shadow to compare it with or the lane is suspect,
        otherwise at random."""
        if shadow is not None or not first.lane_id:
            return shadow is not None
        status = self.status.specialists[first.specialist]
        if status.is_suspect or not status.serves:  # the answers of a last resort show when it may serve again
            return True
        rates = self.ensemble.correctness
        is_new = first.fresh or status.is_learning
        return uniform() < (rates.fresh_sample_rate if is_new else rates.sample_rate)

    def _why(self, first: str, knobs: IntentKnobs, moved: bool) -> str:
        primary = self.primary
        if first == primary.name and not primary.serves:
            return f"nothing else serves; {primary.reason or primary.correctness}"
        if first != primary.name:
            intent = next((each for each in self.ensemble.intents if each.name == self.request.intent), None)
            of = f" of the intent {intent.name}" if intent is not None and intent.fallback == first else ""
            return f"fallback {first}{of} is used because {primary.reason or primary.correctness}"
        if moved:
            low = f"confidence {self.decision.confidence:.2f} is below {knobs.threshold:.2f}"
            return f"escalation relieves {primary.name}: {low}"
        return ""

    def _refuse(self, refusal: Refusal, first: str, knobs: IntentKnobs) -> DispatchPlan:
        is_below = bool(first) and self.request.priority < knobs.floor
        is_withheld = is_below and self._is_withheld(knobs)
        between, demand = self._between(first, None, None, knobs, ""), self._demand(first)
        return DispatchPlan((), None, False, between, first, demand, is_withheld=is_withheld, refusal=refusal)

    def _between(
        self, lead: str, asked: Candidate | None, shadow: ShadowOrder | None, knobs: IntentKnobs, why: str
    ) -> wire.Between:
        """Return the plan as the receipt records it. `lead` is the specialist asked first; `asked` is None for a
        refusal."""
        primary = self.primary
        other = clip_bytes(lead, _MAX_NAME) if lead != primary.name else ""
        lane = ""
        if asked is not None and asked.lane_id:
            lane = "fresh" if asked.fresh else "serving"
        between = wire.Between(
            correctness=primary.correctness,
            instead_of=(
                clip_bytes(primary.name, _MAX_NAME) if asked is not None and asked.specialist != primary.name else ""
            ),
            why=clip_bytes(why, _MAX_WHY - len(other.encode()) - _TAG_BYTES),
            lane=lane,
            shadow_threshold=knobs.threshold,
            priority_floor=knobs.floor,
            knobs_by=clip_bytes(knobs.by, _MAX_KNOBS_BY),
            lead=other,
        )
        if shadow is not None:
            describe_order(shadow, between.shadow)
        return between
