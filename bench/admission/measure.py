"""`octet bench admission`: the plan, and its runs in simulated or real time."""

from collections.abc import Sequence
from dataclasses import astuple, replace
from pathlib import Path

from bench.admission.load import (
    LENGTHS,
    QUEUE,
    ArrivalClock,
    Mix,
    Offer,
    Plan,
    ReplicaSetup,
    Run,
    System,
    drawn,
    fitted,
    recorded,
    step_loop,
    tally,
)
from bench.admission.simulated import (
    HORIZON,
    AdmissionSystem,
    ControlledAdmission,
    LoadSimulation,
    QueueAdmission,
    RefusalFollower,
    capacity,
)
from bench.slow_periods import record_slow_periods
from simulation.traces import read_azure
from specialist.engines.sim.engine import CostModel

SYSTEMS: tuple[System, ...] = ("octet", "fcfs", "fcfs tuned", "priority")
_LIVE_SPEED = 4  # times as fast as the simulated replica, because callers share its cores
_PROBE = 1_000_003  # the seed for measuring capacity, which no run uses


def simulate(plan: Plan) -> tuple[float, list[Run]]:
    rate = capacity(plan.setup, plan.source, _PROBE)
    runs: list[Run] = []
    for load in plan.loads:
        asked = {seed: plan.offers(load, rate, seed) for seed in plan.seeds}
        systems: tuple[System, ...] = ("octet", "fcfs", "priority")
        runs += [run(plan, offers, load, system, seed) for seed, offers in asked.items() for system in systems]
        runs += tuned(plan, asked, load)
    return rate, runs


def tuned(plan: Plan, asked: dict[int, list[Offer]], load: float) -> list[Run]:
    """Return the runs with the queue length that gives the most answers in time, known only afterwards."""
    tries = (
        [run(plan, offers, load, "fcfs tuned", seed, length) for seed, offers in asked.items()]
        for length in plan.lengths
    )
    return max(tries, key=lambda runs: sum(tally(each.outcomes, each.window).answers for each in runs))


def run(plan: Plan, asked: list[Offer], load: float, system: System, seed: int, length: int = QUEUE) -> Run:
    play = LoadSimulation(asked, lambda clock: _open(plan, system, clock, seed, length))
    door = play.door
    follower = None
    if isinstance(door, ControlledAdmission) and plan.followed:
        until = plan.seconds_at(load) - HORIZON
        follower = RefusalFollower(play, door, until=until, each=max(1, len(asked) // plan.followed))
    outcomes = play.run()
    return Run(
        load,
        system,
        seed,
        plan.window(load),
        outcomes,
        errors=door.errors() if isinstance(door, ControlledAdmission) else None,
        followed_refusals=() if follower is None else tuple(follower.found),
        busy=1 - play.idle / play.clock.now(),
        most_admitted=play.most_admitted,
        length=length if isinstance(door, QueueAdmission) else None,
    )


def _open(plan: Plan, system: System, clock: ArrivalClock, seed: int, length: int) -> AdmissionSystem:
    loop = step_loop(plan.setup, clock, seed)
    if system == "octet":
        return ControlledAdmission(loop, plan.setup, clock, seed)
    return QueueAdmission(loop, clock, length=length, by_priority=system == "priority")


def make_plan(
    loads: tuple[float, ...],
    seconds: float,
    seeds: Sequence[int],
    *,
    trace: Path | None = None,
    early: float = 0.0,
    lengths: tuple[int, ...] = LENGTHS,
    live: bool = False,
) -> Plan:
    speed = _LIVE_SPEED if live else 1
    setup = ReplicaSetup(cost=CostModel(*(seconds / speed for seconds in astuple(CostModel()))))
    source = drawn(setup.context) if trace is None else recorded(fitted(read_azure(trace), setup.context))
    mix = Mix(least_patience=0.5 / speed, early=early)
    return Plan(setup, source, mix, loads, seconds, seeds, compressed=trace is not None, lengths=lengths)


def play_on_replica(plan: Plan, *, routed: bool) -> tuple[float, list[Run]]:
    """Run the plan in real time."""
    from bench.admission.live import live_site, play_live

    with record_slow_periods() as slow_periods, live_site(plan.setup, routed=routed) as site:
        capacity, runs = play_live(plan, site)
    return capacity, [replace(run, slow_periods=slow_periods) for run in runs]
