"""Nobody gets more than a key may have, and whoever comes back when told to is let in."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.clock import ManualClock
from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2 as wire
from router.keys.access import Access
from router.keys.bucket import Bucket
from router.keys.gate import Gate
from router.keys.key import Allowance
from router.keys.meter import Meter
from router.keys.shown import from_metadata
from tests.router.keys.keyed import Made, book_of, made

GAPS = st.lists(st.floats(0, 20, allow_nan=False), max_size=60)


@given(st.integers(1, 40), GAPS)
def test_in_no_span_of_time_are_there_more_than_a_burst_and_its_share(most: int, gaps: list[float]) -> None:
    clock, meter, let_in = ManualClock(), Meter(Allowance(requests_per_minute=most), 0.0), list[float]()
    for gap in gaps:
        clock.sleep(gap)
        try:
            meter.enter(clock.now())
        except Refusal as refusal:
            assert refusal.error.reason == wire.ERROR_REASON_KEY_LIMIT
            assert refusal.error.field == "requests_per_minute"
        else:
            let_in.append(clock.now())
            meter.leave(0.0)
    for first in range(len(let_in)):
        for last in range(first, len(let_in)):
            span = let_in[last] - let_in[first]
            assert last - first + 1 <= most + most * span / 60 + 1e-6


@given(st.integers(1, 10_000), st.lists(st.tuples(st.floats(0, 30), st.integers(1, 50_000)), min_size=1, max_size=30))
def test_what_was_had_beyond_the_allowance_is_paid_back_first(most: int, asks: list[tuple[float, int]]) -> None:
    """Let in are those who find at least one token; so it is overdrawn by one answer at most, and on average kept."""
    clock, meter, had, largest = ManualClock(), Meter(Allowance(tokens_per_minute=most), 0.0), 0, 0
    for gap, num_tokens in asks:
        clock.sleep(gap)
        try:
            meter.enter(clock.now())
        except Refusal as refusal:
            assert refusal.error.field == "tokens_per_minute"
            continue
        meter.leave(0.0)
        assert had <= most + most * clock.now() / 60 + 1e-6
        meter.charge(num_tokens, clock.now())
        had, largest = had + num_tokens, max(largest, num_tokens)
    assert had <= most + most * clock.now() / 60 + largest + 1e-6


@given(
    st.builds(
        Allowance,
        requests_per_minute=st.none() | st.integers(1, 5),
        tokens_per_minute=st.none() | st.integers(1, 50),
        concurrency=st.none(),
    ),
    st.lists(st.integers(0, 200), min_size=1, max_size=20),
)
def test_whoever_comes_back_when_told_to_is_let_in(allowance: Allowance, sizes: list[int]) -> None:
    clock, meter = ManualClock(), Meter(allowance, 0.0)
    for size in sizes:
        try:
            meter.enter(clock.now())
        except Refusal as refusal:
            assert refusal.error.retry_after_ms > 0
            clock.sleep(refusal.error.retry_after_ms / 1000)
            meter.enter(clock.now())
        meter.leave(0.1)
        meter.charge(size, clock.now())


@given(st.integers(1, 5), st.lists(st.booleans(), max_size=50))
def test_no_more_are_inside_than_may_be(most: int, moves: list[bool]) -> None:
    meter, inside = Meter(Allowance(concurrency=most), 0.0), 0
    for enters in moves:
        if not enters:
            if inside:
                inside -= 1
                meter.leave(4.0)
            continue
        if inside < most:
            meter.enter(0.0)
            inside += 1
        else:
            with pytest.raises(Refusal, match=f"{most} calls at once"):
                meter.enter(0.0)
        assert meter.num_inside == inside


def test_a_place_is_promised_by_how_long_calls_take() -> None:
    meter = Meter(Allowance(concurrency=2), 0.0)
    for _ in range(2):
        meter.enter(0.0)
    with pytest.raises(Refusal) as caught:
        meter.enter(0.0)
    assert not caught.value.error.HasField("retry_after_ms")
    meter.leave(4.0)
    meter.enter(4.0)
    with pytest.raises(Refusal) as caught:
        meter.enter(4.0)
    assert caught.value.error.retry_after_ms == 2000


@given(st.integers(1, 100), st.integers(1, 100), st.integers(0, 300))
def test_a_new_allowance_forgives_nothing(before: int, after: int, had: int) -> None:
    bucket = Bucket(before, 0.0)
    bucket.take(had, 0.0)
    assert bucket.resized(after, 0.0).level(0.0) == pytest.approx(after - had)


def admit(gate: Gate, key: Made) -> object:
    return gate.admit(Access.CALL, from_metadata(key.metadata))


def test_a_key_that_is_gone_leaves_nothing_behind_and_whoever_is_inside_finishes() -> None:
    clock, ann, bob = ManualClock(), made("ann", concurrency=1), made("bob")
    gate = Gate(book_of(ann, bob), clock, lambda: 0)
    passed = gate.admit(Access.CALL, from_metadata(ann.metadata))
    with gate.inside(passed):
        gate.replace(book_of(bob))
        assert gate.num_meters == 0
        with pytest.raises(Refusal, match="nobody here knows"):
            admit(gate, ann)
    assert admit(gate, bob)
    gate.replace(book_of(ann, bob))
    with gate.inside(passed):
        pass


def test_wrong_keys_leave_nothing_behind() -> None:
    gate = Gate(book_of(made("ann")), ManualClock(), lambda: 0)
    for number in range(2000):
        with pytest.raises(Refusal):
            gate.admit(Access.CALL, [(b"authorization", f"Bearer octet_{number}".encode())])
    assert gate.num_meters == 0


def test_a_key_ends_when_it_expires() -> None:
    now = [0]
    key = made("ann", expires_ms=1000)
    gate = Gate(book_of(key), ManualClock(), lambda: now[0])
    now[0] = 999
    assert admit(gate, key)
    now[0] = 1000
    with pytest.raises(Refusal, match="nobody here knows"):
        admit(gate, key)


def test_limits_change_and_what_was_had_counts_on() -> None:
    clock = ManualClock()
    ann = made("ann", requests_per_minute=2)
    gate = Gate(book_of(ann), clock, lambda: 0)

    def enter() -> None:
        with gate.inside(gate.admit(Access.CALL, from_metadata(ann.metadata))):
            pass

    for _ in range(2):
        enter()
    more = Made(made("ann", requests_per_minute=3).key, ann.token)
    object.__setattr__(more.key, "digest", ann.key.digest)
    gate.replace(book_of(more))
    enter()
    with pytest.raises(Refusal, match="3 requests a minute"):
        enter()


def test_levels_only_rise_with_time() -> None:
    bucket = Bucket(60, 0.0)
    bucket.take(60, 0.0)
    levels = [bucket.level(second / 2) for second in range(200)]
    assert all(one <= other for one, other in pairwise(levels)) and levels[0] == 0 and levels[-1] == 60
