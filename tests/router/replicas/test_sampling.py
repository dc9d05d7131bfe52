"""A replica is chosen from a random sample. A usable replica is found if there is one, and the work does not grow with
the size of the fleet."""

from collections import Counter
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from octet.clock import ManualClock
from octet.config.ensemble import DispatchConfig
from octet.v1 import specialist_pb2 as wire
from router.dispatch.replicas.replica import Replica, ReplicaSet
from router.dispatch.replicas.selection import pick_replica, shuffle_lazily
from tests.router.replicas.builders import lane, rendezvous_replica, report

STALE = DispatchConfig().stale_seconds
STATES = st.lists(
    st.tuples(
        st.integers(0, 9), st.booleans(), st.booleans(), st.sampled_from([(), ("a",), ("a", "b")]), st.booleans()
    ),
    min_size=1,
    max_size=12,
)
"""The state of each replica: depth, draining, serving, adapters, tried."""
State = tuple[int, bool, bool, tuple[str, ...], bool]


def fleet(states: list[State], choices: int) -> tuple[ReplicaSet, set[str]]:
    made = lane(ManualClock(), len(states), DispatchConfig(choices=choices))
    tried = set()
    for each, (depth, draining, warm, adapters, was_tried) in zip(made.replicas.values(), states, strict=True):
        resident = [wire.ResidentAdapter(name=name) for name in adapters]
        each.load_reported(report(running=depth, draining=draining, adapters=resident))
        each.health_reported(is_serving=warm)
        if was_tried:
            tried.add(each.name)
    return made, tried


@given(STATES, st.integers(1, 3), st.binary(max_size=4), st.sampled_from([(), ("a",), ("b",)]), st.integers(0, 2**32))
def test_usable_replica_is_chosen_if_there_is_one(
    states: list[State], choices: int, session: bytes, adapters: tuple[str, ...], seed: int
) -> None:
    made, tried = fleet(states, choices)
    able = {each.name for each in made.replicas.values() if each.is_usable} - tried
    chosen = made.choose(tried, session, adapters, Random(seed), healthy=True)
    assert (chosen is None) == (not able)
    assert chosen is None or chosen.name in able
    roomy = made.choose(tried, session, adapters, Random(seed), healthy=True, with_capacity=True)
    assert roomy is None or roomy.snapshot(STALE).has_capacity


@given(STATES, st.binary(max_size=4), st.sampled_from([(), ("a",), ("b",)]), st.integers(0, 2**32))
def test_sampling_all_replicas_agrees_with_picking_from_all(
    states: list[State], session: bytes, adapters: tuple[str, ...], seed: int
) -> None:
    """The two methods may choose different replicas, but these have the same cost."""
    made, tried = fleet(states, len(states))
    able = [each for each in made.replicas.values() if each.is_usable and each.name not in tried]
    chosen = made.choose(tried, session, adapters, Random(seed), healthy=True)
    if not able:
        return
    assert chosen is not None
    candidates = [each.snapshot(STALE) for each in able]
    picked = pick_replica(candidates, session, adapters, made.dispatch, Random(seed))
    home = rendezvous_replica(session, candidates).name if session else ""

    def figures(name: str) -> tuple[object, ...]:
        each = next(each for each in candidates if each.name == name)
        return (
            each.depth / each.max_running - (name == home) / 2 - (set(adapters) <= each.adapters) * bool(adapters) / 4,
        )

    assert figures(chosen.name) == figures(picked.name)


@given(st.integers(2, 40), st.integers(0, 2**32))
def test_a_shuffle_yields_every_replica(count: int, seed: int) -> None:
    members = list(lane(ManualClock(), count).replicas.values())
    random = Random(seed)
    assert sorted(each.name for each in shuffle_lazily(members, random)) == sorted(each.name for each in members)


def test_every_replica_is_drawn_as_often_as_any_other() -> None:
    members = list(lane(ManualClock(), 5).replicas.values())
    random = Random(7)
    places: list[Counter[str]] = [Counter() for _ in members]
    for _ in range(4000):
        for place, each in enumerate(shuffle_lazily(members, random)):
            places[place][each.name] += 1
    assert all(700 < place[each.name] < 900 for place in places for each in members), places


def test_the_number_of_inspected_replicas_does_not_grow_with_the_fleet() -> None:
    made = lane(ManualClock(), 1000)
    looked: list[str] = []

    def may_answer(replica: Replica) -> bool:
        looked.append(replica.name)
        return True

    for _ in range(50):
        assert made.choose((), b"", (), Random(len(looked)), healthy=True, may_answer=may_answer) is not None
    assert len(looked) == 50 * made.dispatch.choices
    home = made.choose((), b"conversation", (), Random(1), healthy=True)
    assert home is not None
    made.affinity.learn(b"conversation", (), home.name)
    looked.clear()
    assert made.choose((), b"conversation", (), Random(2), healthy=True, may_answer=may_answer) is home
    assert len(looked) == made.dispatch.choices + 1


def test_a_drained_majority_does_not_change_the_choice() -> None:
    made = lane(ManualClock(), 64, replace(DispatchConfig(), choices=2))
    for each in list(made.replicas.values())[:60]:
        each.load_reported(report(draining=True))
    found = [made.choose((), b"", (), Random(seed), healthy=True) for seed in range(400)]
    chosen = Counter(each.name for each in found if each is not None)
    assert sum(chosen.values()) == 400 and len(chosen) == 4 and min(chosen.values()) > 50
