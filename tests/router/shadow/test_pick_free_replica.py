"""Shadows run only in free slots of healthy replicas."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.clock import ManualClock
from octet.v1 import specialist_pb2 as wire
from router.dispatch.replicas.replica import Replica
from router.quality.shadow import pick_free_replica
from router.routing.dispatch_plan import Candidate
from tests.router.replicas.builders import lane, report

rarely_true = st.sampled_from([False, False, False, True])
reports = st.builds(
    report,
    waiting=st.integers(0, 2),
    running=st.integers(0, 6),
    shadows=st.integers(0, 3),
    refusing=rarely_true,
    preempting=rarely_true,
    draining=rarely_true,
    revision=st.sampled_from(["", "r1", "r2"]),
    adapters=st.sampled_from([[], [wire.ResidentAdapter(name="a")]]),
)
FAULTS = ["none", "none", "none", "unreported", "cold", "hung", "lost", "tripped", "drained"]


def inject(replica: Replica, kind: str) -> None:
    if kind == "cold":
        replica.health_reported(is_serving=False)
    elif kind == "hung":
        replica.mark_hung(2.0)
    elif kind == "lost":
        replica.disconnected("gone")
    elif kind == "tripped":
        replica.breaker.trip()


@given(
    reported=st.lists(st.tuples(reports, st.sampled_from(FAULTS), st.integers(0, 3), st.integers(0, 2)), max_size=4),
    adapters=st.sampled_from([(), ("a",)]),
    revision=st.sampled_from(["", "r1"]),
)
def test_the_chosen_replica_is_healthy_serves_the_lane_and_has_a_free_slot(
    reported: list[tuple[wire.LoadReport, str, int, int]], adapters: tuple[str, ...], revision: str
) -> None:
    clock = ManualClock()
    replica_set = lane(clock, len(reported))
    sent: dict[Replica, int] = {}
    free: dict[str, float] = {}
    drained: set[str] = set()
    for replica, (load, kind, num_sent, num_primaries) in zip(replica_set.replicas.values(), reported, strict=True):
        if kind != "unreported":
            replica.load_reported(load)
        inject(replica, kind)
        for _ in range(num_primaries):
            replica.enter()
        sent[replica] = num_sent
        primaries = max(0, load.waiting + load.running - load.shadows) + num_primaries
        share = (primaries + max(load.shadows, num_sent)) / load.max_running
        fits = set(adapters) <= {each.name for each in load.adapters} and revision in ("", load.revision)
        if kind == "none" and fits and share < 1 and not (load.refusing or load.preempting or load.draining):
            free[replica.name] = share
        if kind == "drained":
            drained.add(replica.name)
    candidate = Candidate("stl", adapters, revision=revision)
    chosen = pick_free_replica(replica_set, candidate, sent, lambda each: each.name not in drained, Random(0))
    assert (chosen is not None) == bool(free)
    if chosen is not None:
        assert free[chosen.name] == min(free.values())
    assert all(not replica.breaker._num_failures for replica in replica_set.replicas.values())


RESIDENT = [wire.ResidentAdapter(name="a")]


@pytest.mark.parametrize(
    ("load", "is_free"),
    [
        ({}, True),
        ({"refusing": True}, False),
        ({"preempting": True}, False),
        ({"draining": True}, False),
        ({"adapters": []}, False),
        ({"revision": "r2"}, False),
        ({"running": 7}, True),
        ({"running": 8}, False),
        ({"running": 8, "shadows": 1}, False),
        ({"running": 4, "waiting": 4}, False),
    ],
)
def test_each_reason_alone_excludes_a_replica(load: dict[str, Any], is_free: bool) -> None:
    replica_set = lane(ManualClock(), 1)
    (replica,) = replica_set.replicas.values()
    replica.load_reported(report(**{"adapters": RESIDENT, "revision": "r1", **load}))
    candidate = Candidate("stl", ("a",), revision="r1")
    assert (pick_free_replica(replica_set, candidate, {}, lambda _: True, Random(0)) is replica) == is_free
    assert pick_free_replica(replica_set, candidate, {replica: 8}, lambda _: True, Random(0)) is None
    assert pick_free_replica(replica_set, candidate, {}, lambda _: False, Random(0)) is None


def test_a_probe_is_not_spent_on_a_shadow() -> None:
    clock = ManualClock()
    replica_set = lane(clock, 1)
    (replica,) = replica_set.replicas.values()
    replica.load_reported(report())
    replica.breaker.trip()
    clock.sleep(1.0)
    replica.load_reported(report())
    assert replica.is_usable and str(replica.breaker.state) == "half_open"
    assert pick_free_replica(replica_set, Candidate("stl"), {}, lambda _: True, Random(0)) is None
    assert replica.breaker.would_allow
