"""What the seeds come by: a point that never fires and a deed without consequences prove nothing."""

from typing import get_args

import pytest

from octet.fault_points import FAULT_POINTS, fault_injected, inject_faults
from specialist.engines.sim.engine import FaultKind
from tests.simulation.run import live
from tests.simulation.script import DeedKind, draw

SEEDS = range(1000, 1100)
RICH = (1002, 1021, 1030, 1039, 1045, 1046, 1050, 1075, 1085)
"""Of them, those that are looked at first: they show everything. Where they do not any more, the others are."""
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
    "set aside",
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


SIGHTS = (
    *(f"deed: {kind}" for kind in get_args(DeedKind)),
    *(f"mishap: {point}" for point in (*FAULT_POINTS, *get_args(FaultKind))),
    *CONSEQUENCES,
)


def test_everything_is_come_by() -> None:
    missing = set(SIGHTS)
    for seed in sorted(SEEDS, key=lambda seed: seed not in RICH):
        missing -= {sight for sight, number in live(draw(seed)).seen.items() if number}
        if not missing:
            break
    assert not missing


@pytest.mark.parametrize(
    ("seed", "sights"),
    [
        (47, ("ended: below_floor", "relaxed")),
        (126, ("correctness: recovering", "correctness: closed", "shadow failed")),
    ],
)
def test_what_seldom_comes_about_does(seed: int, sights: tuple[str, ...]) -> None:
    seen = live(draw(seed)).seen
    assert [sight for sight in sights if not seen.get(sight)] == []


def test_nothing_goes_wrong_where_nobody_is_installed() -> None:
    assert not any(fault_injected(point) for point in FAULT_POINTS)


def test_one_simulation_at_a_time() -> None:
    with inject_faults(lambda point: point == "pool.apply"):
        assert fault_injected("pool.apply") and not fault_injected("pool.shortage")
        with pytest.raises(RuntimeError), inject_faults(lambda _: True):
            pass
    assert not fault_injected("pool.apply")
