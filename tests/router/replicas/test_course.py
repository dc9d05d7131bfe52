"""From replica to replica: bounded, paid for, and never in vain."""

from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.clock import ManualClock
from octet.config.ensemble import DispatchConfig
from octet.rpc.refusal import deadline_exceeded, invalid_field, queue_full, unknown_adapter
from octet.v1 import error_pb2, specialist_pb2
from router.dispatch.attempts import (
    AttemptFailure,
    AttemptSequence,
    AttemptTarget,
    FailureKind,
    replica_lost,
    replica_unreachable,
)
from router.dispatch.replicas.replica import ReplicaSet
from tests.router.replicas.builders import lane

UNSAFE = ("dropped", "lost", "failed")
KINDS: list[FailureKind] = ["free", "full", "dropped", "lost", "failed", "final"]


def legs(*lanes: ReplicaSet) -> list[AttemptTarget]:
    return [AttemptTarget(each) for each in lanes]


def failure(kind: FailureKind) -> AttemptFailure:
    refusal = {
        "full": queue_full("waiting", 1, 3.0),
        "free": replica_unreachable("x"),
        "dropped": replica_unreachable("x"),
        "final": invalid_field("prompt", "another", "this"),
    }
    return AttemptFailure(kind, refusal.get(kind, replica_lost("x", kind)))


@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=30, max_size=30),
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=2),
    burst=st.integers(0, 3),
    most=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_no_replica_is_asked_twice_and_work_that_was_lost_is_paid_for(
    kinds: list[FailureKind], counts: list[int], burst: int, most: int, seed: int
) -> None:
    clock = ManualClock()
    dispatch = DispatchConfig(max_attempts=most, retry_burst=burst)
    lanes = [lane(clock, count, dispatch, name) for name, count in zip(("stl", "build"), counts, strict=False)]
    course = AttemptSequence(legs(*lanes), b"", Random(seed))
    asked: list[tuple[str, FailureKind]] = []
    last: AttemptFailure | None = None
    while (replica := course.next()) is not None:
        last = failure(kinds[len(asked)])
        asked.append((replica.name, last.kind))
        course.failed(last)
    names, ended = [name for name, _ in asked], [kind for _, kind in asked]
    by_second = bool(asked) and asked[-1][1] == "final" and not asked[-1][0].startswith("stl")
    assert len(set(names)) == len(names) <= sum(counts)
    if not ended[:-1] or "full" not in ended[:-1]:
        assert [name.startswith("stl") for name in names] == sorted(
            (name.startswith("stl") for name in names), reverse=True
        )
    paid = [kind for kind in (ended[:-1] if by_second else ended) if kind != "free"]
    assert len(paid) <= most
    spent = [kind for kind in ended[:-1] if kind in UNSAFE]
    assert len(spent) == burst - round(lanes[0].retry_budget.tokens), "whoever is turned away at the door owes nothing"
    assert sum(kind in UNSAFE for kind in ended) <= 2
    assert "final" not in ended[:-1]
    told = course.refusal().error.reason
    if not paid:
        assert told == error_pb2.ERROR_REASON_NO_REPLICA
        assert by_second or len(names) == sum(counts), "what costs nothing is tried everywhere"
    if last is not None and last.kind in ("lost", "dropped") and len(names) < sum(counts):
        assert course.refusal() is last.refusal, "somebody else serves: it was not asked"
    assert (told == error_pb2.ERROR_REASON_INVALID_FIELD) == ("final" in ended and not by_second)
    if ended and set(ended) == {"full"}:
        assert told == error_pb2.ERROR_REASON_QUEUE_FULL
    assert course.may_wait == (not paid or set(paid) == {"dropped"})


def asked(course: AttemptSequence, fails: Mapping[str, FailureKind]) -> list[str]:
    """Specialists in their order, until nobody is left; each fails in its own way."""
    order = []
    while (chosen := course.next()) is not None:
        order.append(chosen.specialist)
        course.failed(failure(fails[chosen.specialist]))
    return order


def test_healthy_second_choice_is_asked_before_a_broken_primary() -> None:
    clock = ManualClock()
    lanes = [lane(clock, 2, specialist="stl"), lane(clock, 2, specialist="build")]
    for replica in lanes[0].replicas.values():
        replica.mark_hung(2.0)
    course = AttemptSequence(legs(*lanes), b"", Random(0))
    assert asked(course, {"stl": "free", "build": "free"}) == ["build", "build", "stl", "stl"]
    course.start_over()
    assert course.next() is not None


@pytest.mark.parametrize(
    ("primary", "reason"),
    [
        ("full", error_pb2.ERROR_REASON_QUEUE_FULL),
        ("lost", error_pb2.ERROR_REASON_REPLICA_LOST),
        ("failed", error_pb2.ERROR_REASON_REPLICA_LOST),
        ("free", error_pb2.ERROR_REASON_NO_REPLICA),
    ],
)
def test_what_the_second_choice_cannot_answer_ends_as_the_primary_said(primary: FailureKind, reason: int) -> None:
    clock = ManualClock()
    lanes = [lane(clock, 1, specialist="stl"), lane(clock, 2, specialist="build")]
    course = AttemptSequence(legs(*lanes), b"", Random(0))
    for kind in (primary, "final"):
        assert course.next() is not None
        course.failed(failure(kind))
    assert course.next() is None
    assert course.refusal().error.reason == reason


def test_what_the_second_choice_cannot_answer_the_primary_is_asked_though_it_is_not_sound() -> None:
    clock = ManualClock()
    lanes = [lane(clock, 1, specialist="stl"), lane(clock, 2, specialist="build")]
    for replica in lanes[0].replicas.values():
        replica.mark_hung(2.0)
    course = AttemptSequence(legs(*lanes), b"", Random(0))
    assert asked(course, {"stl": "free", "build": "final"}) == ["build", "stl"]
    assert course.may_wait and course.refusal().error.reason == error_pb2.ERROR_REASON_NO_REPLICA


def test_a_deadline_is_the_callers_whoever_says_so() -> None:
    clock = ManualClock()
    course = AttemptSequence(legs(lane(clock, 1, specialist="stl"), lane(clock, 2, specialist="build")), b"", Random(0))
    for each in (failure("full"), AttemptFailure("final", deadline_exceeded())):
        course.next()
        course.failed(each)
    assert course.next() is None
    assert course.refusal().error.reason == error_pb2.ERROR_REASON_DEADLINE


def filled(each: ReplicaSet, *, refusing: bool = False) -> ReplicaSet:
    """Every seat is taken, or somebody was just refused."""
    for replica in each.replicas.values():
        running = 0 if refusing else 8
        replica.load_reported(specialist_pb2.LoadReport(running=running, max_running=8, refusing=refusing))
    return each


@pytest.mark.parametrize("refusing", [False, True])
def test_full_second_choice_gets_no_spilled_request(refusing: bool) -> None:
    clock = ManualClock()
    course = AttemptSequence(
        legs(lane(clock, 1, specialist="stl"), filled(lane(clock, 2, specialist="build"), refusing=refusing)),
        b"",
        Random(0),
    )
    assert course.next() is not None
    course.failed(failure("full"))
    assert course.next() is None
    assert course.refusal().error.retry_after_ms == 3000


def test_a_second_choice_without_room_still_stands_in_for_a_primary_that_is_gone() -> None:
    clock = ManualClock()
    course = AttemptSequence(
        legs(lane(clock, 1, specialist="stl"), filled(lane(clock, 1, specialist="build"))), b"", Random(0)
    )
    assert course.next() is not None
    course.failed(failure("free"))
    chosen = course.next()
    assert chosen is not None and chosen.specialist == "build"
    assert not course.is_spill


def test_of_many_that_are_full_the_last_attempt_is_the_second_choices() -> None:
    clock = ManualClock()
    dispatch = DispatchConfig(max_attempts=3)
    course = AttemptSequence(legs(lane(clock, 5, dispatch, "stl"), lane(clock, 1, dispatch, "build")), b"", Random(0))
    order = []
    while (chosen := course.next()) is not None:
        order.append((chosen.specialist, course.is_spill))
        course.failed(failure("full"))
    assert order == [("stl", False), ("stl", False), ("build", True)]


def test_replica_that_may_not_answer_is_never_asked() -> None:
    clock = ManualClock()
    stl = lane(clock, 3, specialist="stl")
    kept = next(iter(stl.replicas))
    course = AttemptSequence([AttemptTarget(stl, may_answer=lambda replica: replica.name == kept)], b"", Random(0))
    names = []
    while (chosen := course.next()) is not None:
        names.append(chosen.name)
        course.failed(failure("free"))
    assert names == [kept]


def test_a_replica_that_has_not_got_the_lanes_adapter_yet_is_passed_over() -> None:
    clock = ManualClock()
    for is_callers, told in (
        (False, error_pb2.ERROR_REASON_NO_REPLICA),
        (True, error_pb2.ERROR_REASON_UNKNOWN_ADAPTER),
    ):
        course = AttemptSequence([AttemptTarget(lane(clock, 2), ("mine",), is_callers)], b"", Random(0))
        while course.next() is not None:
            course.failed(AttemptFailure("final", unknown_adapter("mine")))
        assert course.refusal().error.reason == told


def test_a_conversation_goes_where_it_was_let_in_last_on_each_lane_of_its_own() -> None:
    clock = ManualClock()
    stl, build = lane(clock, 4, specialist="stl"), lane(clock, 4, specialist="build")
    usual = AttemptSequence(legs(stl), b"chat", Random(0)).next()
    other = next(each for each in stl.replicas.values() if each is not usual)
    course = AttemptSequence(legs(stl, build), b"chat", Random(0))
    assert course.next() is usual
    course.accepted(other)
    for seed in range(8):
        assert AttemptSequence(legs(stl), b"chat", Random(seed)).next() is other
        assert AttemptSequence([AttemptTarget(stl, ("a",))], b"chat", Random(seed)).next() is usual
    other.disconnected("it died")
    assert AttemptSequence(legs(stl), b"chat", Random(1)).next() is usual
    assert build.affinity.find(b"chat", ()) is None
