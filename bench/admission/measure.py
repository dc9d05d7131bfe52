"""`octet bench admission`: the plan from what was asked for, and the figures from the plan."""

from dataclasses import astuple, dataclass, replace
from pathlib import Path

from bench.admission.azure import fitted, read_azure
from bench.admission.mix import Mix
from bench.admission.replica import Plant
from bench.admission.report import class_records, load_records
from bench.admission.run import LENGTHS, Plan, Run
from bench.admission.shapes import Source, drawn, recorded
from bench.record import Record
from bench.spells import noting_spells
from specialist.engines.sim import CostModel

LOADS = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
_LIVE_SPEED = 4
"""How many times as fast as the simulated replica the live one is: its callers share two cores with it."""


@dataclass(frozen=True, slots=True)
class Options:
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
class Findings:
    capacity: float
    classes: list[Record]
    loads: list[Record]


def measure_admission(options: Options) -> Findings:
    """Raises OSError, TraceError, SiteFailed."""
    plan = plan_of(options)
    capacity, runs = _played(plan, options)
    priorities = plan.mix.priorities
    return Findings(capacity, list(class_records(runs, priorities)), list(load_records(runs)))


def plan_of(options: Options) -> Plan:
    speed = _LIVE_SPEED if options.live else 1
    plant = Plant(cost=CostModel(*(seconds / speed for seconds in astuple(CostModel()))))
    mix = Mix(least_patience=0.5 / speed, early=options.early)
    return Plan(
        plant,
        _source(options, plant.context),
        mix,
        options.loads,
        options.seconds,
        seeds=range(options.first_seed, options.first_seed + options.runs),
        compressed=options.trace is not None,
        lengths=options.lengths,
    )


def _source(options: Options, context: int) -> Source:
    return drawn(context) if options.trace is None else recorded(fitted(read_azure(options.trace), context))


def _played(plan: Plan, options: Options) -> tuple[float, list[Run]]:
    if options.live:
        from bench.admission.live import play_live  # loads gRPC and an event loop
        from bench.admission.live_site import live_site

        with noting_spells() as spells, live_site(plan.plant, routed=options.routed) as site:
            capacity, runs = play_live(plan, site)
        return capacity, [replace(run, spells=spells) for run in runs]
    from bench.admission.simulate import simulate

    return simulate(plan)
