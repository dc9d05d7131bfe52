"""Attempts at replicas are limited, and retries of lost requests use up the retry budget."""

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


def targets(*lanes: ReplicaSet) -> list[AttemptTarget]:
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
def test_no_replica_is_tried_twice_and_lost_work_uses_the_retry_budget(
    kinds: list[FailureKind], counts: list[int], burst: int, most: int, seed: int
) -> None:
    clock = ManualClock()
    dispatch = DispatchConfig(max_attempts=most, retry_burst=burst)
    lanes = [lane(clock, count, dispatch, name) for name, count in zip(("stl", "build"), counts, strict=False)]
    attempts = AttemptSequence(targets(*lanes), b"", Random(seed))
    names: list[str] = []
    counted: list[AttemptFailure] = []  # all failures but a final one of the second choice, which is then given up
    is_second_given_up, retried = False, 0  # how many of the counted failures were followed by an attempt
    while (replica := attempts.next()) is not None:
        assert not (is_second_given_up and replica.specialist == "build")
        retried = len(counted)
        last = failure(kinds[len(names)])
        names.append(replica.name)
        attempts.failed(last)
        if last.kind == "final" and replica.specialist == "build":
            is_second_given_up = True
        else:
            counted.append(last)
    ended = [each.kind for each in counted]
    assert len(set(names)) == len(names) <= sum(counts)
    if "full" not in kinds[: max(0, len(names) - 1)]:
        assert names == sorted(names, key=lambda name: not name.startswith("stl"))
    paid = [kind for kind in ended if kind != "free"]
    assert len(paid) <= most
    spent = [kind for kind in ended[:retried] if kind in UNSAFE]
    assert len(spent) == burst - round(lanes[0].retry_budget.tokens), (
        "a request that was not admitted must cost no retry, and lost work must cost one"
    )
    assert sum(kind in UNSAFE for kind in ended) <= 2
    assert "final" not in ended[:-1]
    reason = attempts.refusal().error.reason
    if not paid:
        assert reason == error_pb2.ERROR_REASON_NO_REPLICA
        assert is_second_given_up or len(names) == sum(counts), "free attempts must try every replica"
    is_held_back = is_second_given_up or len(names) < sum(counts)
    if ended and ended[-1] in ("lost", "dropped") and is_held_back:
        assert attempts.refusal() is counted[-1].refusal, "the refusal must not claim that no replica serves"
    assert (reason == error_pb2.ERROR_REASON_INVALID_FIELD) == ("final" in ended)
    if ended and set(ended) == {"full"}:
        assert reason == error_pb2.ERROR_REASON_QUEUE_FULL
    is_away = set(ended) <= {"free", "dropped", "lost"}
    assert attempts.may_wait == (is_away and sum(kind in UNSAFE for kind in ended) <= 1 and len(paid) < most)


@pytest.mark.parametrize(("burst", "num_attempts"), [(0, 2), (1, 4), (2, 4)])
def test_lost_work_is_charged_once_and_not_retried_without_budget(burst: int, num_attempts: int) -> None:
    """After the second failure, the second choice refuses the request finally, and a replica of the first is left."""
    clock = ManualClock()
    dispatch = DispatchConfig(max_attempts=3, retry_burst=burst)
    lanes = [lane(clock, 3, dispatch, "stl"), lane(clock, 1, dispatch, "build")]
    attempts = AttemptSequence(targets(*lanes), b"", Random(0))
    kinds: list[FailureKind] = ["full", "lost", "final", "free"]
    order = []
    while (replica := attempts.next()) is not None:
        order.append(replica.specialist)
        attempts.failed(failure(kinds[len(order) - 1]))
    assert order == ["stl", "stl", "build", "stl"][:num_attempts]
    assert lanes[0].retry_budget.tokens == pytest.approx(max(0, burst - 1))


def asked(attempts: AttemptSequence, fails: Mapping[str, FailureKind]) -> list[str]:
    """Return the specialists in the order in which they are tried. Each fails with its kind of failure in `fails`."""
    order = []
    while (chosen := attempts.next()) is not None:
        order.append(chosen.specialist)
        attempts.failed(failure(fails[chosen.specialist]))
    return order


def test_healthy_second_choice_is_asked_before_a_broken_primary() -> None:
    clock = ManualClock()
    lanes = [lane(clock, 2, specialist="stl"), lane(clock, 2, specialist="build")]
    for replica in lanes[0].replicas.values():
        replica.breaker.trip()
    attempts = AttemptSequence(targets(*lanes), b"", Random(0))
    assert asked(attempts, {"stl": "free", "build": "free"}) == ["build", "build", "stl", "stl"]
    attempts.start_over()
    assert attempts.next() is not None


def test_a_hung_replica_is_asked_only_after_it_reports_again() -> None:
    clock = ManualClock()
    lanes = [lane(clock, 2, specialist="stl"), lane(clock, 1, specialist="build")]
    hung = lanes[0].replicas["stl-0"]
    hung.mark_hung(2.0)
    lanes[0].replicas["stl-1"].breaker.trip()
    attempts = AttemptSequence(targets(*lanes), b"", Random(0))
    assert asked(attempts, {"stl": "free", "build": "free"}) == ["build", "stl"], "a broken replica may have recovered"
    hung.load_reported(specialist_pb2.LoadReport(max_running=8))
    attempts.start_over()
    assert asked(attempts, {"stl": "free", "build": "free"}) == ["stl", "build", "stl"]


@pytest.mark.parametrize(
    ("primary", "reason"),
    [
        ("full", error_pb2.ERROR_REASON_QUEUE_FULL),
        ("lost", error_pb2.ERROR_REASON_REPLICA_LOST),
        ("failed", error_pb2.ERROR_REASON_REPLICA_LOST),
        ("free", error_pb2.ERROR_REASON_NO_REPLICA),
    ],
)
def test_a_failure_of_the_second_choice_keeps_the_primarys_refusal(primary: FailureKind, reason: int) -> None:
    clock = ManualClock()
    lanes = [lane(clock, 1, specialist="stl"), lane(clock, 2, specialist="build")]
    attempts = AttemptSequence(targets(*lanes), b"", Random(0))
    for kind in (primary, "final"):
        assert attempts.next() is not None
        attempts.failed(failure(kind))
    assert attempts.next() is None
    assert attempts.refusal().error.reason == reason


def test_an_unhealthy_primary_is_tried_after_the_second_choice() -> None:
    clock = ManualClock()
    lanes = [lane(clock, 1, specialist="stl"), lane(clock, 2, specialist="build")]
    for replica in lanes[0].replicas.values():
        replica.breaker.trip()
    attempts = AttemptSequence(targets(*lanes), b"", Random(0))
    assert asked(attempts, {"stl": "free", "build": "final"}) == ["build", "stl"]
    assert attempts.may_wait and attempts.refusal().error.reason == error_pb2.ERROR_REASON_NO_REPLICA


def test_a_deadline_ends_the_request_at_any_specialist() -> None:
    clock = ManualClock()
    attempts = AttemptSequence(
        targets(lane(clock, 1, specialist="stl"), lane(clock, 2, specialist="build")), b"", Random(0)
    )
    for each in (failure("full"), AttemptFailure("final", deadline_exceeded())):
        attempts.next()
        attempts.failed(each)
    assert attempts.next() is None
    assert attempts.refusal().error.reason == error_pb2.ERROR_REASON_DEADLINE


def filled(each: ReplicaSet, *, refusing: bool = False) -> ReplicaSet:
    """Report every replica as full, or as refusing if `refusing` is set. Return the replica set."""
    for replica in each.replicas.values():
        running = 0 if refusing else 8
        replica.load_reported(specialist_pb2.LoadReport(running=running, max_running=8, refusing=refusing))
    return each


@pytest.mark.parametrize("refusing", [False, True])
def test_full_second_choice_gets_no_spilled_request(refusing: bool) -> None:
    clock = ManualClock()
    attempts = AttemptSequence(
        targets(lane(clock, 1, specialist="stl"), filled(lane(clock, 2, specialist="build"), refusing=refusing)),
        b"",
        Random(0),
    )
    assert attempts.next() is not None
    attempts.failed(failure("full"))
    assert attempts.next() is None
    assert attempts.refusal().error.retry_after_ms == 3000


def test_a_full_second_choice_replaces_a_lost_primary() -> None:
    clock = ManualClock()
    attempts = AttemptSequence(
        targets(lane(clock, 1, specialist="stl"), filled(lane(clock, 1, specialist="build"))), b"", Random(0)
    )
    assert attempts.next() is not None
    attempts.failed(failure("free"))
    chosen = attempts.next()
    assert chosen is not None and chosen.specialist == "build"
    assert not attempts.is_spill


def test_the_last_attempt_of_a_full_primary_goes_to_the_second_choice() -> None:
    clock = ManualClock()
    dispatch = DispatchConfig(max_attempts=3)
    attempts = AttemptSequence(
        targets(lane(clock, 5, dispatch, "stl"), lane(clock, 1, dispatch, "build")), b"", Random(0)
    )
    order = []
    while (chosen := attempts.next()) is not None:
        order.append((chosen.specialist, attempts.is_spill))
        attempts.failed(failure("full"))
    assert order == [("stl", False), ("stl", False), ("build", True)]


@pytest.mark.parametrize("kind", ["final", "full"])
def test_an_offer_that_fails_leaves_the_request_to_its_first_choice(kind: FailureKind) -> None:
    """The second choice cannot answer the request at all, or has no room after all."""
    clock = ManualClock()
    lanes = [lane(clock, 2, specialist="build"), filled(lane(clock, 2, specialist="stl"))]
    attempts = AttemptSequence(targets(*lanes), b"", Random(0), is_offer=True)
    order = asked(attempts, {"build": kind, "stl": "full"})
    assert order == (["build", "stl", "stl"] if kind == "final" else ["build", "build", "stl"])
    assert attempts.refusal().error.reason == error_pb2.ERROR_REASON_QUEUE_FULL


def test_a_request_that_was_not_offered_is_tried_at_each_replica_of_its_first_choice() -> None:
    """The second choice has no room, and nor have, as far as is known, the replicas of the first choice."""
    clock = ManualClock()
    lanes = [filled(lane(clock, 1, specialist="build")), filled(lane(clock, 3, specialist="stl"))]
    attempts = AttemptSequence(targets(*lanes), b"", Random(0), is_offer=True)
    assert asked(attempts, {"stl": "full"}) == ["stl", "stl", "stl"]


@pytest.mark.parametrize("has_room", [False, True])
def test_an_offer_below_a_floor_goes_only_to_a_second_choice_with_room(has_room: bool) -> None:
    clock = ManualClock()
    build = lane(clock, 1, specialist="build")
    attempts = AttemptSequence(targets(build if has_room else filled(build)), b"", Random(0), is_offer=True)
    assert asked(attempts, {"build": "final"}) == (["build"] if has_room else [])


def test_replica_that_may_not_answer_is_never_asked() -> None:
    clock = ManualClock()
    stl = lane(clock, 3, specialist="stl")
    kept = next(iter(stl.replicas))
    attempts = AttemptSequence([AttemptTarget(stl, may_answer=lambda replica: replica.name == kept)], b"", Random(0))
    names = []
    while (chosen := attempts.next()) is not None:
        names.append(chosen.name)
        attempts.failed(failure("free"))
    assert names == [kept]


def test_a_replica_without_the_lanes_adapter_is_skipped() -> None:
    clock = ManualClock()
    for is_callers, reason in (
        (False, error_pb2.ERROR_REASON_NO_REPLICA),
        (True, error_pb2.ERROR_REASON_UNKNOWN_ADAPTER),
    ):
        attempts = AttemptSequence([AttemptTarget(lane(clock, 2), ("mine",), is_callers)], b"", Random(0))
        while attempts.next() is not None:
            attempts.failed(AttemptFailure("final", unknown_adapter("mine")))
        assert attempts.refusal().error.reason == reason


def test_a_conversation_returns_to_its_last_replica_for_each_lane() -> None:
    clock = ManualClock()
    stl, build = lane(clock, 4, specialist="stl"), lane(clock, 4, specialist="build")
    usual = AttemptSequence(targets(stl), b"chat", Random(0)).next()
    other = next(each for each in stl.replicas.values() if each is not usual)
    attempts = AttemptSequence(targets(stl, build), b"chat", Random(0))
    assert attempts.next() is usual
    attempts.accepted(other)
    for seed in range(8):
        assert AttemptSequence(targets(stl), b"chat", Random(seed)).next() is other
        assert AttemptSequence([AttemptTarget(stl, ("a",))], b"chat", Random(seed)).next() is usual
    other.disconnected("it died")
    assert AttemptSequence(targets(stl), b"chat", Random(1)).next() is usual
    assert build.affinity.find(b"chat", ()) is None
