"""From replica to replica: bounded, paid for, and never in vain."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from octet.clock import ManualClock
from octet.config.ensemble import DispatchConfig
from octet.rpc.refusal import queue_full
from octet.v1 import error_pb2
from router.dispatch.course import Course
from router.replicas.failure import Failure, Kind, lost, unreachable
from tests.router.replicas.builders import lane

KINDS: list[Kind] = ["free", "full", "dropped", "lost", "failed", "final"]


def failure(kind: Kind) -> Failure:
    refusal = {"full": queue_full("waiting", 1, 3.0), "free": unreachable("x"), "dropped": unreachable("x")}
    return Failure(kind, refusal.get(kind, lost("x", kind)))


@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=30, max_size=30),
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=2),
    burst=st.integers(0, 3),
    most=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_no_replica_is_asked_twice_and_every_retry_is_paid_for(
    kinds: list[Kind], counts: list[int], burst: int, most: int, seed: int
) -> None:
    clock = ManualClock()
    dispatch = DispatchConfig(max_attempts=most, retry_burst=burst)
    lanes = [lane(clock, count, dispatch, name) for name, count in zip(("stl", "build"), counts, strict=False)]
    course = Course(lanes, "", (), Random(seed))
    asked: list[tuple[str, Kind]] = []
    while (replica := course.next()) is not None:
        kind = kinds[len(asked)]
        asked.append((replica.name, kind))
        course.failed(failure(kind))
    names, ended = [name for name, _ in asked], [kind for _, kind in asked]
    assert len(set(names)) == len(names) <= sum(counts)
    assert [name.startswith("stl") for name in names] == sorted(
        (name.startswith("stl") for name in names), reverse=True
    )
    paid = [kind for kind in ended if kind != "free"]
    assert len(paid) <= most
    assert len([kind for kind in ended[:-1] if kind != "free"]) == burst - round(lanes[0].bucket.tokens)
    assert sum(kind in ("dropped", "lost", "failed") for kind in ended) <= 2
    assert "final" not in ended[:-1]
    told = course.refusal().error.reason
    if not paid:
        assert told == error_pb2.ERROR_REASON_NO_REPLICA
        assert len(names) == sum(counts), "what costs nothing is tried everywhere"
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
