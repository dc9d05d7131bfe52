"""From replica to replica: bounded, paid for, and never in vain."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.clock import ManualClock
from octet.config.ensemble import DispatchConfig
from octet.rpc.refusal import invalid, past_deadline, queue_full
from octet.v1 import error_pb2
from router.dispatch.course import Course
from router.replicas.failure import Failure, Kind, lost, unreachable
from tests.router.replicas.builders import lane

UNSAFE = ("dropped", "lost", "failed")
KINDS: list[Kind] = ["free", "full", "dropped", "lost", "failed", "final"]


def failure(kind: Kind) -> Failure:
    refusal = {
        "full": queue_full("waiting", 1, 3.0),
        "free": unreachable("x"),
        "dropped": unreachable("x"),
        "final": invalid("prompt", "another", "this"),
    }
    return Failure(kind, refusal.get(kind, lost("x", kind)))


@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=30, max_size=30),
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=2),
    burst=st.integers(0, 3),
    most=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_no_replica_is_asked_twice_and_work_that_was_lost_is_paid_for(
    kinds: list[Kind], counts: list[int], burst: int, most: int, seed: int
) -> None:
    clock = ManualClock()
    dispatch = DispatchConfig(max_attempts=most, retry_burst=burst)
    lanes = [lane(clock, count, dispatch, name) for name, count in zip(("stl", "build"), counts, strict=False)]
    course = Course(lanes, "", (), Random(seed))
    asked: list[tuple[str, Kind]] = []
    last: Failure | None = None
    while (replica := course.next()) is not None:
        last = failure(kinds[len(asked)])
        asked.append((replica.name, last.kind))
        course.failed(last)
    names, ended = [name for name, _ in asked], [kind for _, kind in asked]
    by_second = bool(asked) and asked[-1][1] == "final" and not asked[-1][0].startswith("stl")
    assert len(set(names)) == len(names) <= sum(counts)
    assert [name.startswith("stl") for name in names] == sorted(
        (name.startswith("stl") for name in names), reverse=True
    )
    paid = [kind for kind in (ended[:-1] if by_second else ended) if kind != "free"]
    assert len(paid) <= most
    spent = [kind for kind in ended[:-1] if kind in UNSAFE]
    assert len(spent) == burst - round(lanes[0].bucket.tokens), "whoever is turned away at the door owes nothing"
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


def test_who_is_sound_is_asked_first_even_if_it_is_the_second_choice() -> None:
    clock = ManualClock()
    lanes = [lane(clock, 2, specialist="stl"), lane(clock, 2, specialist="build")]
    for replica in lanes[0].replicas.values():
        replica.hangs(2.0)
    course = Course(lanes, "", (), Random(0))
    order = []
    while (chosen := course.next()) is not None:
        order.append(chosen.specialist)
        course.failed(failure("free"))
    assert order == ["build", "build", "stl", "stl"]
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
def test_what_the_second_choice_cannot_answer_ends_as_the_primary_said(primary: Kind, reason: int) -> None:
    clock = ManualClock()
    lanes = [lane(clock, 1, specialist="stl"), lane(clock, 2, specialist="build")]
    course = Course(lanes, "", (), Random(0))
    for kind in (primary, "final"):
        assert course.next() is not None
        course.failed(failure(kind))
    assert course.next() is None
    assert course.refusal().error.reason == reason


def test_what_the_second_choice_cannot_answer_the_primary_is_asked_though_it_is_not_sound() -> None:
    clock = ManualClock()
    lanes = [lane(clock, 1, specialist="stl"), lane(clock, 2, specialist="build")]
    for replica in lanes[0].replicas.values():
        replica.hangs(2.0)
    course = Course(lanes, "", (), Random(0))
    order = []
    while (chosen := course.next()) is not None:
        order.append(chosen.specialist)
        course.failed(failure("final" if chosen.specialist == "build" else "free"))
    assert order == ["build", "stl"]
    assert course.may_wait and course.refusal().error.reason == error_pb2.ERROR_REASON_NO_REPLICA


def test_a_deadline_is_the_callers_whoever_says_so() -> None:
    clock = ManualClock()
    course = Course([lane(clock, 1, specialist="stl"), lane(clock, 2, specialist="build")], "", (), Random(0))
    for each in (failure("full"), Failure("final", past_deadline())):
        course.next()
        course.failed(each)
    assert course.next() is None
    assert course.refusal().error.reason == error_pb2.ERROR_REASON_DEADLINE
