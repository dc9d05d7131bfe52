"""Random ensembles, fleet states and requests, each from a seed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle
from random import Random
from typing import Any, TypeVar

from hypothesis import strategies as st

from admission.knobs import UNSPECIFIED_INTENT
from octet.config.ensemble import REJECT, CorrectnessConfig, Ensemble, IntentConfig, ShadowConfig, SpecialistConfig
from octet.v1 import inference_pb2 as wire
from router.request import Request, RoutingDecision
from router.routing.classifier.base import Distribution
from router.routing.dispatch_plan import (
    DispatchPlan,
    FleetStatus,
    IntentKnobs,
    LaneStatus,
    SpecialistStatus,
    plan_dispatch,
)
from router.routing.policy import RoutingPolicy
from tests.router.routing.ensembles import DIGEST, ENSEMBLE, INTENTS, NAMES, made, opinion
from tests.router.routing.sample_requests import new_validator, validated_request

CORRECTNESS = ("closed", "closed", "closed", "held_closed", "shadow_only", "recovering", "held_open")
SERVING = ("closed", "held_closed")
RATES = (0.0, 0.25, 1.0)
ADAPTERS = ("fast", "small", "my-lora", "other")
_NUM_ENSEMBLES = 40
Dice = Callable[[], float]
_T = TypeVar("_T")


def never() -> float:
    """Return a roll so close to 1 that only events with a rate of 1 occur."""
    return 0.999999


def always() -> float:
    return 0.0


def random_subset(random: Random, among: tuple[_T, ...], most: int) -> list[_T]:
    return random.sample(among, random.randint(0, min(most, len(among))))


@cache
def policy_of(seed: int) -> RoutingPolicy:
    """Return a policy whose fallbacks may be missing or circular."""
    random = Random(seed)
    specialists = tuple(
        replace(each, fallback=random.choice([None, *(name for name in NAMES if name != each.name)]))
        for each in ENSEMBLE.specialists
    )
    intents = tuple(
        replace(each, shadow_threshold=random.choice(RATES), priority_floor=random.choice([0, 0, 4]))
        for each in (*ENSEMBLE.intents, IntentConfig(UNSPECIFIED_INTENT))
    )
    ensemble = replace(
        ENSEMBLE,
        specialists=specialists,
        intents=intents,
        shadow=ShadowConfig(fresh_rate=random.choice(RATES), demoted_rate=random.choice(RATES)),
        correctness=CorrectnessConfig(sample_rate=random.choice(RATES), fresh_sample_rate=random.choice(RATES)),
        default=random.choice([None, *NAMES]),
    )
    return RoutingPolicy(ensemble)


def lane(random: Random, specialist: str, number: int) -> LaneStatus:
    names = random_subset(random, ADAPTERS, 3)
    return LaneStatus(
        number,
        f"{specialist}|{number}|{'-'.join(names)}",
        tuple((name, f"{name}.{number}") for name in names),
        random.choice(["", "r1"]),
        random.random() < 0.3,
        frozenset(random_subset(random, (f"{specialist}-0",), 1)),
    )


def random_specialist_status(random: Random, specialist: SpecialistConfig) -> SpecialistStatus:
    correctness = random.choice(CORRECTNESS)
    serving = lane(random, specialist.name, 1)
    return SpecialistStatus(
        specialist.name,
        serving,
        correctness,
        serves=correctness in SERVING,
        reason="" if correctness in SERVING else f"{specialist.name} passed 3 of 40",
        is_last_resort=correctness in ("shadow_only", "recovering") and specialist.name < "m",
        unfit_reason=f"no replica of {specialist.name} may answer" if random.random() < 0.2 else "",
        candidate=lane(random, specialist.name, 2) if random.random() < 0.3 else None,
        adapter_names={**{name: name for name in specialist.adapters}, **dict(serving.adapters)},
    )


def knobs(random: Random) -> IntentKnobs:
    return IntentKnobs(
        random.choice(RATES),
        random.choice([0, 0, 3, 9]),
        random.choice(["escalation", "operator"]),
        random.choice(["", "escalation", "operator"]),
        random.random() < 0.5,
    )


def random_fleet_status(random: Random, ensemble: Ensemble) -> FleetStatus:
    places = [(intent, name) for intent in (*INTENTS, UNSPECIFIED_INTENT) for name in NAMES]
    return replace(
        FleetStatus.initial(ensemble),
        specialists={each.name: random_specialist_status(random, each) for each in ensemble.specialists},
        knob_overrides={place: knobs(random) for place in random.sample(places, random.randint(0, 8))},
        drained=frozenset(random_subset(random, ("algo-1",), 1)),
    )


def with_reported_lanes(status: FleetStatus) -> FleetStatus:
    """Return the status after the replicas have reported the configured adapters."""
    lanes = {name: replace(each.lane, number=1, lane_id=f"{name}|1|") for name, each in status.specialists.items()}
    specialists = {name: replace(each, lane=lanes[name]) for name, each in status.specialists.items()}
    return replace(status, specialists=specialists)


@dataclass(frozen=True)
class PlanCase:
    ask: Request
    decision: RoutingDecision
    ensemble: Ensemble
    status: FleetStatus

    def plan(self, dice: Dice = never) -> DispatchPlan:
        self.ask.decision = self.decision
        return plan_dispatch(self.ask, self.ensemble, self.status, dice)

    def serves(self, name: str) -> bool:
        return self.status.specialists[name].serves

    def fallback(self, name: str) -> str:
        """Return the specialist's fallback, or an empty string if it has none or the caller excludes it."""
        fallback = self.ensemble.specialist(name).fallback or ""
        return "" if fallback in self.ask.exclude else fallback

    def floor(self, name: str) -> int:
        return self.status.knobs(self.ask.intent, name).floor


def request(random: Random) -> wire.InferRequest:
    """Return a random request. In most cases, the classifier chooses its specialist."""
    names = random.sample(NAMES, len(NAMES))
    forced = random.choice([0, 0, 0, 0, 1, 2])
    asked = wire.InferRequest(
        prompt=random.choice(["yes", "yes", "yes", "Write a thread pool.", "undefined reference to `foo()'"]),
        intent=random.choice(["", *INTENTS, UNSPECIFIED_INTENT]),
        force_specialists=names[:forced],
        exclude_specialists=names[forced : forced + random.choice([0, 0, 0, 1, 2])],
        adapters=random_subset(random, ADAPTERS, 2) if random.random() < 0.2 else (),
        priority=random.randint(0, 9),
    )
    if random.random() < 0.3:
        asked.max_experts = random.randint(1, 4)
    return asked


def random_distribution(random: Random) -> Distribution:
    weights = {name: random.random() ** 2 for name in NAMES} | {REJECT: 0.1}
    return made({name: weight / sum(weights.values()) for name, weight in weights.items()})


def random_plan_case(seed: int, initial: bool = False) -> PlanCase:
    """Return a random case. The real policy decides it, and the specialists may be in any state."""
    random = Random(seed)
    policy = policy_of(random.randrange(_NUM_ENSEMBLES))
    ask = new_validator().validate(request(random), None, None)
    decision = policy.decide(ask, random_distribution(random), DIGEST)
    if not decision.primary:
        ask = validated_request(force_specialists=[NAMES[0]])
        decision = policy.decide(ask, None, "")
    ensemble = policy.ensemble
    return PlanCase(
        ask, decision, ensemble, FleetStatus.initial(ensemble) if initial else random_fleet_status(random, ensemble)
    )


def plan_cases(initial: bool = False) -> st.SearchStrategy[PlanCase]:
    return st.integers(0, 1 << 40).map(lambda seed: random_plan_case(seed, initial))


def plan_case(
    ensemble: Ensemble, status: FleetStatus | None = None, sure: dict[str, float] | None = None, **asked: Any
) -> PlanCase:
    """Return a case for a request with the fields `asked`. `sure` is the classifier's result."""
    ask = validated_request(**asked)
    decision = RoutingPolicy(ensemble).decide(ask, opinion(**(sure or {"algo": 0.9})), DIGEST)
    return PlanCase(ask, decision, ensemble, status or with_reported_lanes(FleetStatus.initial(ensemble)))


def demote(status: FleetStatus, *names: str) -> FleetStatus:
    changed = {
        name: replace(
            status.specialists[name], correctness="shadow_only", serves=False, reason=f"{name} passed 3 of 40"
        )
        for name in names
    }
    return replace(status, specialists={**status.specialists, **changed})


def with_fresh_lane(status: FleetStatus, name: str) -> FleetStatus:
    lane = replace(status.specialists[name].lane, fresh=True)
    return replace(status, specialists={**status.specialists, name: replace(status.specialists[name], lane=lane)})


def repeating_dice(*rolls: float) -> Dice:
    """Return dice that repeat these numbers."""
    return cycle(rolls).__next__


DICE: st.SearchStrategy[Dice] = st.integers(0, 1 << 40).map(lambda seed: Random(seed).random)
