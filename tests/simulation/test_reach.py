"""What the seeds come by: a point that never fires and a deed without consequences prove nothing."""

from typing import get_args

import pytest

from bench.simulation.draw import draw
from bench.simulation.run import live
from bench.simulation.script import DeedKind
from octet.mishap import POINTS, installed, mishap
from specialist.engines.sim import FaultKind

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
    "desk: deadline_unreachable",
    "desk: would_delay_others",
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
    *(f"mishap: {point}" for point in (*POINTS, *get_args(FaultKind))),
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
    assert not any(mishap(point) for point in POINTS)


def test_one_simulation_at_a_time() -> None:
    with installed(lambda point: point == "pool.apply"):
        assert mishap("pool.apply") and not mishap("pool.shortage")
        with pytest.raises(RuntimeError), installed(lambda _: True):
            pass
    assert not mishap("pool.apply")
