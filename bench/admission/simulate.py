"""Loads played on simulated time, with admission and with nothing but a queue."""

from collections.abc import Callable, Iterator

from bench.admission.capacity import capacity
from bench.admission.clock import Knocks
from bench.admission.comebacks import HORIZON, Comebacks
from bench.admission.door import Door
from bench.admission.offer import Offer
from bench.admission.play import Play
from bench.admission.queue_door import QueueDoor
from bench.admission.reckoning import ReckoningDoor
from bench.admission.replica import Plant, step_loop
from bench.admission.run import QUEUE, Plan, Run, System
from bench.admission.tally import tally

SYSTEMS: tuple[System, ...] = ("octet", "fcfs", "fcfs tuned", "priority")
_PROBE = 1_000_003
"""Seeds the load that capacity is measured with: none of those that are played."""


def simulate(plan: Plan) -> tuple[float, list[Run]]:
    """The capacity, and a run for each load, system and seed."""
    rate = capacity(plan.plant, plan.source, _PROBE)
    return rate, [run for load in plan.loads for run in _runs(plan, load, rate)]


def _runs(plan: Plan, load: float, rate: float) -> Iterator[Run]:
    asked = {seed: plan.offers(load, rate, seed) for seed in plan.seeds}
    for seed, offers in asked.items():
        for system in ("octet", "fcfs", "priority"):
            yield run(plan, offers, load, system, seed)
    yield from tuned(plan, asked, load)


def tuned(plan: Plan, asked: dict[int, list[Offer]], load: float) -> list[Run]:
    """One queue for all seeds, with the length that has most of them answered in time: known only afterwards."""
    tries = (
        [run(plan, offers, load, "fcfs tuned", seed, length) for seed, offers in asked.items()]
        for length in plan.lengths
    )
    return max(tries, key=lambda runs: sum(_answers(each) for each in runs))


def _answers(one: Run) -> float:
    return tally(one.outcomes, one.window, lambda outcome: True).answers


def run(plan: Plan, asked: list[Offer], load: float, system: System, seed: int, length: int = QUEUE) -> Run:
    """The steps of all systems are unsteady in the same way. `length` is for those that are queues."""
    play = Play(asked, lambda clock: _OPEN_UP[system](plan.plant, clock, seed, length))
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
        most_inside=play.most_inside,
        length=length if isinstance(door, QueueDoor) else None,
    )


def _octet(plant: Plant, clock: Knocks, seed: int, _: int) -> Door:
    return ReckoningDoor(step_loop(plant, clock, seed), plant, clock, seed)


def _first_come(plant: Plant, clock: Knocks, seed: int, length: int) -> Door:
    return QueueDoor(step_loop(plant, clock, seed), clock, length=length, by_priority=False)


def _highest_first(plant: Plant, clock: Knocks, seed: int, length: int) -> Door:
    return QueueDoor(step_loop(plant, clock, seed), clock, length=length, by_priority=True)


_OPEN_UP: dict[System, Callable[[Plant, Knocks, int, int], Door]] = {
    "octet": _octet,
    "fcfs": _first_come,
    "fcfs tuned": _first_come,
    "priority": _highest_first,
}
