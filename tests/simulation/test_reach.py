"""The seeds reach every fault and every consequence, because a fault point that never fires proves nothing."""

from typing import get_args

import pytest

from octet.fault_points import FAULT_POINTS, fault_injected, inject_faults
from specialist.engines.sim.engine import FaultKind
from tests.simulation.run import run_script
from tests.simulation.script import ScriptedFaultKind, draw

SEEDS = range(1000, 1100)
RICH = (1002, 1021, 1030, 1039, 1045, 1046, 1050, 1075, 1085)
"""Seeds to try first, because together they reach everything."""
CONSEQUENCES = (
    "retried",
    "spilled",
    "stood in",
    "probe",
    "breaker open",
    "breaker half_open",
    "breaker closed",
    "preempted for admission",
    "preempted for growth",
    "preempted for deadline",
    "suspended",
    "displaced",
    "prefix hit",
    "replica died",
    "controller: deadline_unreachable",
    "controller: would_delay_others",
    "finished by length",
    "finished by stop",
    "finished by cancelled",
    "finished by deadline",
    "finished by error",
    "finished by shed",
    "ended: ok",
    "ended: cancelled",
    "ended: queue_full",
    "ended: no_replica",
    "ended: replica_lost",
    "ended: engine_failed",
    "ended: shed",
    "ended: demoted",
    "correctness: shadow_only",
    "escalated",
    "shadow answered",
    "shadow shed",
    "shadow: demoted",
    "shadow: low_confidence",
)


OCCURRENCES = (
    *(f"fault: {kind}" for kind in get_args(ScriptedFaultKind)),
    *(f"fault_point: {point}" for point in (*FAULT_POINTS, *get_args(FaultKind))),
    *CONSEQUENCES,
)


def test_seeds_reach_every_occurrence() -> None:
    missing = set(OCCURRENCES)
    for seed in sorted(SEEDS, key=lambda seed: seed not in RICH):
        missing -= {occurrence for occurrence, number in run_script(draw(seed)).seen.items() if number}
        if not missing:
            break
    assert not missing


@pytest.mark.parametrize(
    ("seeds", "occurrences"),
    [
        ((47, 244), ("ended: below_floor", "relaxed")),
        ((238, 827), ("escalated", "relaxed", "answered below a floor")),
        ((475, 668), ("correctness: recovering", "correctness: closed", "shadow failed")),
    ],
)
def test_a_seed_reaches_rare_occurrences_together(seeds: tuple[int, ...], occurrences: tuple[str, ...]) -> None:
    """The second seed is tried only if the first no longer reaches them."""
    reached = (run_script(draw(seed)).seen for seed in seeds)
    assert any(all(seen.get(occurrence) for occurrence in occurrences) for seen in reached)


def test_no_fault_fires_unless_faults_are_injected() -> None:
    assert not any(fault_injected(point) for point in FAULT_POINTS)


def test_only_one_fault_source_at_a_time() -> None:
    with inject_faults(lambda point: point == "pool.apply"):
        assert fault_injected("pool.apply") and not fault_injected("pool.shortage")
        with pytest.raises(RuntimeError), inject_faults(lambda _: True):
            pass
    assert not fault_injected("pool.apply")
