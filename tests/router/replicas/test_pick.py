"""A burst of requests is spread over the replicas, a session stays on its replica, and a replica that preempts gets
fewer requests."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.config.ensemble import DispatchConfig
from router.dispatch.replicas.selection import ReplicaSnapshot, pick_replica
from tests.router.replicas.builders import rendezvous_replica

PLAIN = DispatchConfig()
NO_BONUS = DispatchConfig(session_bonus=0.0, adapter_bonus=0.0, preempting_penalty=0.0)

CANDIDATES = st.lists(
    st.builds(
        ReplicaSnapshot,
        name=st.uuids().map(str),
        depth=st.integers(0, 300),
        max_running=st.integers(1, 64),
        preempting=st.booleans(),
        adapters=st.frozensets(st.sampled_from("abc")),
        is_closed=st.booleans(),
        is_broken=st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


def replicas(depths: list[int]) -> list[ReplicaSnapshot]:
    return [ReplicaSnapshot(f"stl-{index}", depth, max_running=32) for index, depth in enumerate(depths)]


@given(CANDIDATES, st.binary(max_size=8), st.lists(st.sampled_from("abc"), max_size=2), st.integers(0, 2**32))
def test_a_closed_or_broken_replica_is_picked_only_if_all_are(
    candidates: list[ReplicaSnapshot], session: bytes, adapters: list[str], seed: int
) -> None:
    chosen = pick_replica(candidates, session, adapters, PLAIN, Random(seed))
    assert chosen in candidates
    assert chosen.is_closed == all(each.is_closed for each in candidates)
    open_ones = [each for each in candidates if not each.is_closed]
    assert chosen.is_closed or chosen.is_broken == all(each.is_broken for each in open_ones)


@given(CANDIDATES, st.binary(min_size=1, max_size=8), st.integers(0, 2**32))
def test_every_router_finds_the_same_replica_until_it_is_lost(
    candidates: list[ReplicaSnapshot], session: bytes, seed: int
) -> None:
    home = rendezvous_replica(session, candidates)
    shuffled = Random(seed).sample(candidates, len(candidates))
    assert rendezvous_replica(session, shuffled) == home
    others = [each for each in candidates if each != home]
    if others:
        lost = others[0]
        assert rendezvous_replica(session, [each for each in candidates if each != lost]) == home


@given(st.integers(3, 16), st.binary(min_size=1, max_size=8), st.integers(0, 2**32))
def test_a_session_stays_while_its_replica_is_not_much_busier(count: int, session: bytes, seed: int) -> None:
    fleet = replicas([4] * count)
    home = rendezvous_replica(session, fleet)
    busier = [replace(each, depth=8) if each is home else each for each in fleet]
    overrun = [replace(each, depth=64) if each is home else each for each in fleet]
    assert pick_replica(busier, session, (), PLAIN, Random(seed)).name == home.name
    assert pick_replica(overrun, session, (), PLAIN, Random(seed)).name != home.name


@given(st.integers(3, 16), st.integers(0, 15), st.binary(min_size=1, max_size=8), st.integers(0, 2**32))
def test_conversation_stays_unless_its_replica_is_busy_or_lost(
    count: int, where: int, session: bytes, seed: int
) -> None:
    fleet = replicas([4] * count)
    last = fleet[where % count]
    busier = [replace(each, depth=8) if each is last else each for each in fleet]
    overrun = [replace(each, depth=64) if each is last else each for each in fleet]
    lost = [replace(each, is_broken=True) if each is last else each for each in fleet]
    gone = [each for each in fleet if each is not last]
    assert pick_replica(busier, session, (), PLAIN, Random(seed), last.name).name == last.name
    assert pick_replica(overrun, session, (), PLAIN, Random(seed), last.name).name != last.name
    assert (
        pick_replica(lost, session, (), PLAIN, Random(seed), last.name).name == rendezvous_replica(session, gone).name
    )
    assert (
        pick_replica(gone, session, (), PLAIN, Random(seed), last.name).name == rendezvous_replica(session, gone).name
    )


@given(st.integers(2, 16), st.integers(0, 15), st.integers(0, 2**32))
def test_a_resident_adapter_is_found_wherever_it_is(count: int, where: int, seed: int) -> None:
    fleet = replicas([2] * count)
    holder = where % count
    fleet[holder] = replace(fleet[holder], adapters=frozenset({"style", "other"}), depth=4)
    assert pick_replica(fleet, b"", ("style",), PLAIN, Random(seed)).name == fleet[holder].name
    assert pick_replica(fleet, b"", ("style", "absent"), replace(PLAIN, choices=count), Random(seed)).depth == 2


def test_preempting_replica_gets_less() -> None:
    random = Random(4)
    fleet = replicas([8] * 4)
    fleet[0] = replace(fleet[0], preempting=True)
    picked = [pick_replica(fleet, b"", (), PLAIN, random).name for _ in range(400)]
    assert picked.count("stl-0") == 0
    fleet = [replace(each, depth=24) if not each.preempting else each for each in fleet]
    picked = [pick_replica(fleet, b"", (), PLAIN, random).name for _ in range(400)]
    assert picked.count("stl-0") > 0, "the penalty must not exclude the replica"


def spread(num_routers: int, num_replicas: int, num_requests: int, random: Random) -> list[int]:
    """Return the number of requests at each replica if every router knows only stale reports and its own requests."""
    own = [[0] * num_replicas for _ in range(num_routers)]
    for request in range(num_requests):
        mine = own[request % num_routers]
        chosen = pick_replica(replicas(mine), b"", (), NO_BONUS, random)
        mine[int(chosen.name.removeprefix("stl-"))] += 1
    return [sum(column) for column in zip(*own, strict=True)]


@given(st.integers(2, 8), st.integers(0, 2**32))
def test_a_burst_spreads_over_equals(num_replicas: int, seed: int) -> None:
    counts = spread(1, num_replicas, 40 * num_replicas, Random(seed))
    assert max(counts) <= 1.15 * 40


@given(st.integers(2, 8), st.integers(0, 2**32))
def test_three_routers_with_the_same_stale_view_do_not_herd(num_replicas: int, seed: int) -> None:
    counts = spread(3, num_replicas, 40 * num_replicas, Random(seed))
    assert max(counts) <= 1.3 * 40


def test_picking_from_no_replicas_is_an_error() -> None:
    with pytest.raises(ValueError):
        pick_replica([], b"", (), PLAIN, Random(0))
