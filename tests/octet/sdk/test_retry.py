"""Asking again: never too often, never too late, never in a crowd."""

import time
from itertools import pairwise
from random import Random

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octet import Busy, Client, InvalidRequest, NotFound, OctetError, ReplicaLost, ServerError, Unavailable
from octet.clock import ManualClock
from octet.sdk.retry import Effort, RetryBudget, RetryPolicy
from octet.v1 import inference_pb2 as wire
from tests.octet.sdk.server import busy, refuse, scripted

RETRIED = (Busy, Unavailable, ReplicaLost)
ROUNDING = 1e-9


def failure(kind: type[OctetError], after: float | None) -> OctetError:
    return kind("no", code=grpc.StatusCode.UNKNOWN, retry_after=after)


failures = st.builds(
    failure,
    st.sampled_from([Busy, Unavailable, ReplicaLost, InvalidRequest, ServerError, NotFound]),
    st.none() | st.floats(0, 100),
)
timeouts = st.none() | st.floats(0.01, 200)


@given(st.data(), st.integers(0, 6), timeouts, timeouts, st.floats(0, 20))
def test_a_call_stays_within_its_retries_its_time_and_the_budget(
    data: st.DataObject, max_retries: int, timeout: float | None, first_timeout: float | None, capacity: float
) -> None:
    clock, budget = ManualClock(), RetryBudget(capacity=capacity)
    policy = RetryPolicy(max_retries=max_retries)
    effort = Effort(policy, budget, clock, Random(data.draw(st.integers(0, 9))), timeout, first_timeout)
    num_waits = 0
    while True:
        clock.sleep(data.draw(st.floats(0, 5)))
        error, before = data.draw(failures), budget.left
        wait = effort.wait_after(error)
        if wait is None:
            assert budget.left == before, "giving up costs nothing"
            break
        num_waits += 1
        assert isinstance(error, RETRIED)
        assert error.retry_after is None or wait == error.retry_after
        assert 0 <= wait <= (policy.longest_wait if error.retry_after is None else policy.longest_retry_after)
        assert abs(before - budget.left - 1) < ROUNDING
        clock.sleep(wait)
        assert all(each is None or clock.now() <= each + ROUNDING for each in (timeout, first_timeout))
    assert num_waits <= max_retries and num_waits <= capacity
    left = min((each for each in effort.left() if each is not None), default=None)
    if isinstance(error, RETRIED) and error.retry_after is None and num_waits < max_retries and budget.left >= 1:
        assert left is not None and left <= policy.longest_wait, "given up for no reason"


def test_a_priority_that_is_too_low_is_not_tried_again() -> None:
    effort = Effort(RetryPolicy(), RetryBudget(), ManualClock(), Random(1), None)
    assert effort.wait_after(Busy("no", code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="below_floor")) is None
    assert effort.wait_after(Busy("no", code=grpc.StatusCode.RESOURCE_EXHAUSTED)) is not None


@given(st.lists(st.booleans(), max_size=200), st.floats(1, 20), st.floats(0.01, 1))
def test_a_crowd_of_calls_retries_no_more_than_it_has_earned(steps: list[bool], capacity: float, earned: float) -> None:
    budget, num_retries, num_answers = RetryBudget(capacity=capacity, earned=earned), 0, 0
    for is_answer in steps:
        if is_answer:
            budget.earn()
            num_answers += 1
        else:
            num_retries += budget.spend()
        assert 0 <= budget.left <= capacity
        assert num_retries <= capacity + earned * num_answers + ROUNDING


@settings(max_examples=30)
@given(st.integers(1, 2000), st.integers(0, 99))
def test_waits_double_up_to_the_longest_and_are_drawn_in_full(num_retries: int, seed: int) -> None:
    policy = RetryPolicy(max_retries=num_retries)
    effort = Effort(policy, RetryBudget(capacity=num_retries), ManualClock(), Random(seed), None)
    waits = [effort.wait_after(failure(Busy, None)) for _ in range(num_retries)]
    longest = [min(policy.longest_wait, policy.first_wait * 2.0 ** min(count, 60)) for count in range(num_retries)]
    assert all(wait is not None and 0 <= wait <= most for wait, most in zip(waits, longest, strict=True))
    assert num_retries < 100 or max(wait or 0 for wait in waits) > 0.9 * policy.longest_wait
    assert num_retries < 100 or min(wait or 0 for wait in waits) < 0.1 * policy.longest_wait


def test_no_retry_is_what_none_means() -> None:
    with scripted(busy()) as script, Client(script.address, max_retries=0) as client, pytest.raises(Busy):
        client.infer("x")
    assert len(script.calls) == 1
    with pytest.raises(ValueError, match="max_retries"):
        Client(max_retries=-1)


@pytest.mark.parametrize("given_id", [None, "mine"])
def test_a_retry_waits_as_long_as_it_was_told_and_has_an_id_of_its_own(given_id: str | None) -> None:
    with scripted(busy(150), busy(150)) as script, Client(script.address) as client:
        client.infer("x", request_id=given_id, timeout=5, first_token_timeout=3)
    arrivals = [call.arrival for call in script.calls]
    assert len(arrivals) == 3
    assert all(later - earlier >= 0.15 for earlier, later in pairwise(arrivals))
    assert len({call.request.request_id for call in script.calls}) == (3 if given_id is None else 1)
    left = [call.request.timeout_ms for call in script.calls]
    assert left[0] > left[1] + 100 and left[1] > left[2] + 100 and left[2] > 4000, "one timeout for all attempts"
    first = [call.request.first_token_timeout_ms for call in script.calls]
    assert first[0] > first[1] + 100 and first[1] > first[2] + 100 and first[2] > 2000


@pytest.mark.parametrize("patience", [{"timeout": 2.0}, {"timeout": 20.0, "first_token_timeout": 2.0}])
def test_a_wait_that_does_not_fit_is_not_begun(patience: dict[str, float]) -> None:
    with scripted(busy(5_000)) as script, Client(script.address) as client:
        begin = time.monotonic()
        with pytest.raises(Busy) as caught:
            client.infer("x", **patience)  # type: ignore[arg-type]
        assert time.monotonic() - begin < 2 and caught.value.retry_after == 5.0
    assert len(script.calls) == 1


def test_a_storm_is_not_joined() -> None:
    """A hundred calls to a server that refuses them all: no more than the budget's ten are asked again."""
    with scripted(*[busy()] * 300) as script, Client(script.address) as client:
        for _ in range(100):
            with pytest.raises(Busy):
                client.infer("x")
    assert len(script.calls) == 110


@pytest.mark.parametrize("call", ["stream", "infer"])
def test_answers_pay_for_retries(call: str) -> None:
    with scripted() as script, Client(script.address) as client:
        while client._budget.spend():
            continue
        for _ in range(10):
            list(client.stream("x")) if call == "stream" else client.infer("x")
        assert client._budget.left == pytest.approx(1)


def test_what_is_the_callers_fault_is_not_asked_again() -> None:
    refused = refuse(
        grpc.StatusCode.INVALID_ARGUMENT, wire.ERROR_REASON_INVALID_FIELD, field="top_p", limit="in [0, 1]"
    )
    with scripted(refused) as script, Client(script.address) as client:
        with pytest.raises(InvalidRequest) as caught:
            client.infer("x")
        assert (caught.value.field, caught.value.limit) == ("top_p", "in [0, 1]")
    assert len(script.calls) == 1
