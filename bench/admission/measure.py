"""`octet bench admission`: the plan, its runs in simulated or real time, and the figures."""

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace
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
from bench.admission.report import class_records, load_records
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
from simulation.results import BenchRecord
from simulation.traces import read_azure
from specialist.engines.sim.engine import CostModel

SYSTEMS: tuple[System, ...] = ("octet", "fcfs", "fcfs tuned", "priority")
_PROBE = 1_000_003  # the seed for measuring capacity, which no run has


def simulate(plan: Plan) -> tuple[float, list[Run]]:
    rate = capacity(plan.setup, plan.source, _PROBE)
    return rate, [run for load in plan.loads for run in _runs(plan, load, rate)]


def _runs(plan: Plan, load: float, rate: float) -> Iterator[Run]:
    asked = {seed: plan.offers(load, rate, seed) for seed in plan.seeds}
    for seed, offers in asked.items():
        for system in ("octet", "fcfs", "priority"):
            yield run(plan, offers, load, system, seed)
    yield from tuned(plan, asked, load)


def tuned(plan: Plan, asked: dict[int, list[Offer]], load: float) -> list[Run]:
    """One queue length for all seeds: the one with most answers in time, known only afterwards."""
    tries = (
        [run(plan, offers, load, "fcfs tuned", seed, length) for seed, offers in asked.items()]
        for length in plan.lengths
    )
    return max(tries, key=lambda runs: sum(_answers(each) for each in runs))


def _answers(one: Run) -> float:
    return tally(one.outcomes, one.window, lambda outcome: True).answers


def run(plan: Plan, asked: list[Offer], load: float, system: System, seed: int, length: int = QUEUE) -> Run:
    play = LoadSimulation(asked, lambda clock: _OPEN_UP[system](plan.setup, clock, seed, length))
    door = play.door
    followed_refusals = None
    if isinstance(door, ControlledAdmission) and plan.followed:
        until = plan.seconds_at(load) - HORIZON
        followed_refusals = RefusalFollower(play, door, until=until, each=max(1, len(asked) // plan.followed))
    outcomes = play.run()
    return Run(
        load,
        system,
        seed,
        plan.window(load),
        outcomes,
        errors=door.errors() if isinstance(door, ControlledAdmission) else None,
        followed_refusals=() if followed_refusals is None else tuple(followed_refusals.found),
        busy=1 - play.idle / play.clock.now(),
        most_admitted=play.most_admitted,
        length=length if isinstance(door, QueueAdmission) else None,
    )


def _octet(setup: ReplicaSetup, clock: ArrivalClock, seed: int, _: int) -> AdmissionSystem:
    return ControlledAdmission(step_loop(setup, clock, seed), setup, clock, seed)


def _first_come(setup: ReplicaSetup, clock: ArrivalClock, seed: int, length: int) -> AdmissionSystem:
    return QueueAdmission(step_loop(setup, clock, seed), clock, length=length, by_priority=False)


def _highest_first(setup: ReplicaSetup, clock: ArrivalClock, seed: int, length: int) -> AdmissionSystem:
    return QueueAdmission(step_loop(setup, clock, seed), clock, length=length, by_priority=True)


_OPEN_UP: dict[System, Callable[[ReplicaSetup, ArrivalClock, int, int], AdmissionSystem]] = {
    "octet": _octet,
    "fcfs": _first_come,
    "fcfs tuned": _first_come,
    "priority": _highest_first,
}


LOADS = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
_LIVE_SPEED = 4  # times as fast as the simulated replica, because callers share its cores


@dataclass(frozen=True, slots=True)
class AdmissionOptions:
    loads: tuple[float, ...] = LOADS
    seconds: float = 60.0
    runs: int = 3
    trace: Path | None = None
    early: float = 0.0
    lengths: tuple[int, ...] = LENGTHS
    live: bool = False
    routed: bool = False
    first_seed: int = 1


@dataclass(frozen=True, slots=True)
class AdmissionFindings:
    capacity: float
    classes: list[BenchRecord]
    loads: list[BenchRecord]


def measure_admission(options: AdmissionOptions) -> AdmissionFindings:
    plan = plan_of(options)
    capacity, runs = _played(plan, options)
    priorities = plan.mix.priorities
    return AdmissionFindings(capacity, list(class_records(runs, priorities)), list(load_records(runs)))


def plan_of(options: AdmissionOptions) -> Plan:
    speed = _LIVE_SPEED if options.live else 1
    setup = ReplicaSetup(cost=CostModel(*(seconds / speed for seconds in astuple(CostModel()))))
    mix = Mix(least_patience=0.5 / speed, early=options.early)
    return Plan(
        setup,
        drawn(setup.context) if options.trace is None else recorded(fitted(read_azure(options.trace), setup.context)),
        mix,
        options.loads,
        options.seconds,
        seeds=range(options.first_seed, options.first_seed + options.runs),
        compressed=options.trace is not None,
        lengths=options.lengths,
    )


def _played(plan: Plan, options: AdmissionOptions) -> tuple[float, list[Run]]:
    if options.live:
        from bench.admission.live import live_site, play_live

        with record_slow_periods() as slow_periods, live_site(plan.setup, routed=options.routed) as site:
            capacity, runs = play_live(plan, site)
        return capacity, [replace(run, slow_periods=slow_periods) for run in runs]
    pass

    return simulate(plan)
