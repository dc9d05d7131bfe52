"""A replica without a door: scheduler, pool and simulated engine, with steps that do not always take the same."""

from dataclasses import dataclass, field
from random import Random

from bench.admission.offer import Offer
from kvpool import BlockPool
from octet.clock import Clock
from octet.identity import Lane
from specialist.engines.sim import CostModel, Fault, SimEngine, SimModel
from specialist.loop import StepLoop
from specialist.request import Request
from specialist.service.scheduling import new_scheduler
from specialist.service.settings import ReplicaSettings
from specialist.step import Step

_NEVER_SAID = frozenset({10_000})
"""A stop token: the answer may end before its limit."""
LANE = Lane("overloaded", "a" * 64)


@dataclass(frozen=True, slots=True)
class Plant:
    """What stands there."""

    cost: CostModel = field(default_factory=CostModel)
    """What steps really take, but for the noise."""
    guess: CostModel | None = None
    """What admission is told they take, to begin with; None for the truth."""
    num_blocks: int = 512
    block_size: int = 16
    max_running: int = 16
    max_waiting: int = 256
    context: int = 1024
    noise: float = 0.08
    """Sigma of the lognormal factor on every step."""
    stalls: float = 0.005
    """Share of steps that take three times as long."""


def step_loop(plant: Plant, clock: Clock, seed: int) -> StepLoop:
    pool = BlockPool(plant.num_blocks + 1, plant.block_size)
    settings = ReplicaSettings(LANE.specialist, "sim", max_running=plant.max_running)
    scheduler = new_scheduler(pool, LANE, settings, clock, kv_dtype="sim")
    engine = SimEngine(
        SimModel(),
        plant.cost,
        clock,
        num_blocks=plant.num_blocks + 1,
        block_size=plant.block_size,
        faults=_Unsteady(plant, seed),
    )
    return StepLoop(scheduler, engine)


def request_of(offer: Offer) -> Request:
    """Prompts share nothing."""
    prompt = (offer.number, *range(1, offer.prompt_tokens))
    return Request(
        name_of(offer),
        LANE,
        prompt,
        offer.max_tokens,
        offer.priority,
        arrival=offer.at,
        deadline=offer.deadline,
        stop_ids=frozenset() if offer.exact else _NEVER_SAID,
    )


def name_of(offer: Offer) -> str:
    return f"r{offer.number}"


class _Unsteady:
    """An object and not a closure, so that a copy of the replica draws what the replica would have drawn."""

    def __init__(self, plant: Plant, seed: int) -> None:
        self._plant = plant
        self._rng = Random(seed)

    def __call__(self, _: Step) -> Fault:
        stalled = 3.0 if self._rng.random() < self._plant.stalls else 1.0
        return Fault("slow", factor=stalled * self._rng.lognormvariate(0.0, self._plant.noise))
