"""A key exceeds its limits by at most one answer's tokens, and a call that waited for its retry-after is admitted."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.clock import ManualClock
from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2 as wire
from router.api.keys.gate import AccessGate, headers_from_metadata
from router.api.keys.keys import Access, Allowance
from router.api.keys.rate_limits import KeyMeter, TokenBucket
from tests.router.keys.keyed import IssuedKey, issue_key, key_set

GAPS = st.lists(st.floats(0, 20, allow_nan=False), max_size=60)


@given(st.integers(1, 40), GAPS)
def test_no_time_span_exceeds_a_burst_plus_its_rate(most: int, gaps: list[float]) -> None:
    clock, meter, let_in = ManualClock(), KeyMeter(Allowance(requests_per_minute=most), 0.0), list[float]()
    for gap in gaps:
        clock.sleep(gap)
        try:
            meter.begin_call(clock.now())
        except Refusal as refusal:
            assert refusal.error.reason == wire.ERROR_REASON_KEY_LIMIT
            assert refusal.error.field == "requests_per_minute"
        else:
            let_in.append(clock.now())
            meter.end_call(0.0)
    for first in range(len(let_in)):
        for last in range(first, len(let_in)):
            span = let_in[last] - let_in[first]
            assert last - first + 1 <= most + most * span / 60 + 1e-6


@given(st.integers(1, 10_000), st.lists(st.tuples(st.floats(0, 30), st.integers(1, 50_000)), min_size=1, max_size=30))
def test_overdrawn_tokens_are_refilled_first(most: int, asks: list[tuple[float, int]]) -> None:
    """A call is admitted while any token is left, so the limit is exceeded by at most one answer."""
    clock, meter, had, largest = ManualClock(), KeyMeter(Allowance(tokens_per_minute=most), 0.0), 0, 0
    for gap, num_tokens in asks:
        clock.sleep(gap)
        try:
            meter.begin_call(clock.now())
        except Refusal as refusal:
            assert refusal.error.field == "tokens_per_minute"
            continue
        meter.end_call(0.0)
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
def test_retry_after_the_retry_after_is_admitted(allowance: Allowance, sizes: list[int]) -> None:
    clock, meter = ManualClock(), KeyMeter(allowance, 0.0)
    for size in sizes:
        try:
            meter.begin_call(clock.now())
        except Refusal as refusal:
            assert refusal.error.retry_after_ms > 0
            clock.sleep(refusal.error.retry_after_ms / 1000)
            meter.begin_call(clock.now())
        meter.end_call(0.1)
        meter.charge(size, clock.now())


@given(st.integers(1, 5), st.lists(st.booleans(), max_size=50))
def test_concurrency_limit_holds(most: int, moves: list[bool]) -> None:
    meter, inside = KeyMeter(Allowance(concurrency=most), 0.0), 0
    for enters in moves:
        if not enters:
            if inside:
                inside -= 1
                meter.end_call(4.0)
            continue
        if inside < most:
            meter.begin_call(0.0)
            inside += 1
        else:
            with pytest.raises(Refusal, match=f"{most} concurrent calls"):
                meter.begin_call(0.0)
        assert meter.num_open == inside


def test_concurrency_retry_after_follows_typical_durations() -> None:
    meter = KeyMeter(Allowance(concurrency=2), 0.0)
    for _ in range(2):
        meter.begin_call(0.0)
    with pytest.raises(Refusal) as caught:
        meter.begin_call(0.0)
    assert not caught.value.error.HasField("retry_after_ms")
    meter.end_call(4.0)
    meter.begin_call(4.0)
    with pytest.raises(Refusal) as caught:
        meter.begin_call(4.0)
    assert caught.value.error.retry_after_ms == 2000


@given(st.integers(1, 100), st.integers(1, 100), st.integers(0, 300))
def test_changed_limits_keep_the_usage(before: int, after: int, had: int) -> None:
    bucket = TokenBucket(before, 0.0)
    bucket.take(had, 0.0)
    assert bucket.resized(after, 0.0).level(0.0) == pytest.approx(after - had)


def admit(gate: AccessGate, key: IssuedKey) -> object:
    return gate.authorize(Access.CALL, headers_from_metadata(key.metadata))


def test_revoked_key_leaves_no_meter_and_running_calls_finish() -> None:
    clock, ann, bob = ManualClock(), issue_key("ann", concurrency=1), issue_key("bob")
    gate = AccessGate(key_set(ann, bob), clock, lambda: 0)
    passed = gate.authorize(Access.CALL, headers_from_metadata(ann.metadata))
    with gate.call(passed):
        gate.replace(key_set(bob))
        assert len(gate._meters) == 0
        with pytest.raises(Refusal, match="unknown, revoked or expired"):
            admit(gate, ann)
    assert admit(gate, bob)
    gate.replace(key_set(ann, bob))
    with gate.call(passed):
        pass


def test_unknown_keys_leave_no_meter() -> None:
    gate = AccessGate(key_set(issue_key("ann")), ManualClock(), lambda: 0)
    for number in range(2000):
        with pytest.raises(Refusal):
            gate.authorize(Access.CALL, [(b"authorization", f"Bearer octet_{number}".encode())])
    assert len(gate._meters) == 0


def test_key_expires() -> None:
    now = [0]
    key = issue_key("ann", expires_ms=1000)
    gate = AccessGate(key_set(key), ManualClock(), lambda: now[0])
    now[0] = 999
    assert admit(gate, key)
    now[0] = 1000
    with pytest.raises(Refusal, match="unknown, revoked or expired"):
        admit(gate, key)


def test_limits_change_and_usage_continues() -> None:
    clock = ManualClock()
    ann = issue_key("ann", requests_per_minute=2)
    gate = AccessGate(key_set(ann), clock, lambda: 0)

    def enter() -> None:
        with gate.call(gate.authorize(Access.CALL, headers_from_metadata(ann.metadata))):
            pass

    for _ in range(2):
        enter()
    more = IssuedKey(issue_key("ann", requests_per_minute=3).key, ann.token)
    object.__setattr__(more.key, "digest", ann.key.digest)
    gate.replace(key_set(more))
    enter()
    with pytest.raises(Refusal, match="3 requests per minute"):
        enter()


def test_levels_only_rise_with_time() -> None:
    bucket = TokenBucket(60, 0.0)
    bucket.take(60, 0.0)
    levels = [bucket.level(second / 2) for second in range(200)]
    assert all(one <= other for one, other in pairwise(levels)) and levels[0] == 0 and levels[-1] == 60
