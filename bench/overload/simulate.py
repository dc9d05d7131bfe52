"""Loads played on simulated time, with admission and without."""

from collections.abc import Iterator

from bench.overload.capacity import capacity
from bench.overload.clock import Knocks
from bench.overload.comebacks import HORIZON, Comebacks
from bench.overload.door import Door, OpenDoor
from bench.overload.offer import Offer
from bench.overload.play import Play
from bench.overload.reckoning import ReckoningDoor
from bench.overload.replica import Plant, step_loop
from bench.overload.run import Plan, Run, System

SYSTEMS: tuple[System, ...] = ("octet", "queue")
_PROBE = 1_000_003
"""Seeds the load that capacity is measured with: none of those that are played."""


def simulate(plan: Plan) -> tuple[float, list[Run]]:
    """The capacity, and a run for each load, system and seed."""
    rate = capacity(plan.plant, plan.source, _PROBE)
    return rate, list(_runs(plan, rate))


def _runs(plan: Plan, rate: float) -> Iterator[Run]:
    for seed in plan.seeds:
        for load in plan.loads:
            asked = plan.offers(load, rate, seed)
            for system in SYSTEMS:
                yield run(plan, asked, load, system, seed)


def run(plan: Plan, asked: list[Offer], load: float, system: System, seed: int) -> Run:
    """The steps of both systems are unsteady in the same way."""
    play = Play(asked, lambda clock: _door(plan.plant, clock, system, seed))
    door = play.door
    comebacks = None
    if isinstance(door, ReckoningDoor) and plan.followed:
        until = plan.seconds_at(load) - HORIZON
        comebacks = Comebacks(play, door, until=until, each=max(1, len(asked) // plan.followed))
    outcomes = play.run()
    return Run(
        load,
        system,
        seed,
        plan.window(load),
        outcomes,
        errors=door.errors() if isinstance(door, ReckoningDoor) else None,
        comebacks=() if comebacks is None else tuple(comebacks.found),
        busy=1 - play.idle / play.clock.now(),
    )


def _door(plant: Plant, clock: Knocks, system: System, seed: int) -> Door:
    loop = step_loop(plant, clock, seed)
    if system == "octet":
        return ReckoningDoor(loop, plant, clock, seed)
    return OpenDoor(loop, plant.max_running + plant.max_waiting)
