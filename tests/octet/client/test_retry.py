"""Retries are limited in number, in time and by a budget."""

import time
from itertools import pairwise
from random import Random

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octet import Busy, Client, InvalidRequest, NotFound, OctetError, ReplicaLost, ServerError, Unavailable
from octet.client.request import FIRST_WAIT_S, LONGEST_RETRY_AFTER_S, LONGEST_WAIT_S, ClientRetryBudget, RetrySchedule
from octet.clock import ManualClock
from octet.v1 import inference_pb2 as wire
from tests.octet.client.server import busy, refuse, scripted

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
def test_retries_stay_within_their_number_time_and_budget(
    data: st.DataObject, max_retries: int, timeout: float | None, first_timeout: float | None, capacity: float
) -> None:
    clock, budget = ManualClock(), ClientRetryBudget(capacity=capacity)
    effort = RetrySchedule(max_retries, budget, clock, Random(data.draw(st.integers(0, 9))), timeout, first_timeout)
    num_waits = 0
    while True:
        clock.sleep(data.draw(st.floats(0, 5)))
        error, before = data.draw(failures), budget.left
        wait = effort.wait_after(error)
        if wait is None:
            assert budget.left == before, "giving up must cost no budget"
            break
        num_waits += 1
        assert isinstance(error, RETRIED)
        assert error.retry_after is None or wait == error.retry_after
        assert 0 <= wait <= (LONGEST_WAIT_S if error.retry_after is None else LONGEST_RETRY_AFTER_S)
        assert abs(before - budget.left - 1) < ROUNDING
        clock.sleep(wait)
        assert all(each is None or clock.now() <= each + ROUNDING for each in (timeout, first_timeout))
    assert num_waits <= max_retries and num_waits <= capacity
    left = min((each for each in effort.left() if each is not None), default=None)
    if isinstance(error, RETRIED) and error.retry_after is None and num_waits < max_retries and budget.left >= 1:
        assert left is not None and left <= LONGEST_WAIT_S, "the client gave up although a retry was allowed"


def test_priority_below_the_floor_is_not_retried() -> None:
    effort = RetrySchedule(2, ClientRetryBudget(), ManualClock(), Random(1), None)
    assert effort.wait_after(Busy("no", code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="below_floor")) is None
    assert effort.wait_after(Busy("no", code=grpc.StatusCode.RESOURCE_EXHAUSTED)) is not None


@given(st.lists(st.booleans(), max_size=200), st.floats(1, 20), st.floats(0.01, 1))
def test_retry_budget_is_shared_and_earned(steps: list[bool], capacity: float, earned: float) -> None:
    budget, num_retries, num_answers = ClientRetryBudget(capacity=capacity, earned=earned), 0, 0
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
def test_waits_double_up_to_the_maximum(num_retries: int, seed: int) -> None:
    effort = RetrySchedule(num_retries, ClientRetryBudget(capacity=num_retries), ManualClock(), Random(seed), None)
    waits = [effort.wait_after(failure(Busy, None)) for _ in range(num_retries)]
    longest = [min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(count, 60)) for count in range(num_retries)]
    assert all(wait is not None and 0 <= wait <= most for wait, most in zip(waits, longest, strict=True))
    assert num_retries < 100 or max(wait or 0 for wait in waits) > 0.9 * LONGEST_WAIT_S
    assert num_retries < 100 or min(wait or 0 for wait in waits) < 0.1 * LONGEST_WAIT_S


def test_zero_retries_means_none() -> None:
    with scripted(busy()) as script, Client(script.address, max_retries=0) as client, pytest.raises(Busy):
        client.infer("x")
    assert len(script.calls) == 1
    with pytest.raises(ValueError, match="max_retries"):
        Client(max_retries=-1)


@pytest.mark.parametrize("given_id", [None, "mine"])
def test_retry_waits_for_the_retry_after_and_has_a_new_id(given_id: str | None) -> None:
    with scripted(busy(150), busy(150)) as script, Client(script.address) as client:
        client.infer("x", request_id=given_id, timeout=60, first_token_timeout=50)
    arrivals = [call.arrival for call in script.calls]
    assert len(arrivals) == 3
    assert all(later - earlier >= 0.15 for earlier, later in pairwise(arrivals))
    assert len({call.request.request_id for call in script.calls}) == (3 if given_id is None else 1)
    left = [call.request.timeout_ms for call in script.calls]
    assert left[0] > left[1] + 100 and left[1] > left[2] + 100 and left[2] > 30_000, (
        "all attempts must share the timeout"
    )
    first = [call.request.first_token_timeout_ms for call in script.calls]
    assert first[0] > first[1] + 100 and first[1] > first[2] + 100 and first[2] > 20_000


@pytest.mark.parametrize("patience", [{"timeout": 15.0}, {"timeout": 60.0, "first_token_timeout": 15.0}])
def test_wait_beyond_the_timeout_fails_at_once(patience: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("the client must not wait beyond its timeout"))
    with scripted(busy(20_000)) as script, Client(script.address) as client:
        with pytest.raises(Busy) as caught:
            client.infer("x", **patience)  # type: ignore[arg-type]
        assert caught.value.retry_after == 20.0
    assert len(script.calls) == 1


def test_client_stops_retrying_when_its_budget_is_spent() -> None:
    """A hundred calls are refused. Only ten retries follow, because the budget covers ten."""
    with scripted(*[busy()] * 300) as script, Client(script.address) as client:
        for _ in range(100):
            with pytest.raises(Busy):
                client.infer("x")
    assert len(script.calls) == 110


@pytest.mark.parametrize("call", ["stream", "infer"])
def test_a_retry_sends_the_ticket_of_the_refusal_and_costs_no_budget(call: str) -> None:
    kept = refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, wire.ERROR_REASON_QUEUE_FULL, 120, ticket="T")
    with scripted(kept, busy(), kept) as script, Client(script.address) as client:
        while client._budget.spend():
            continue
        with pytest.raises(Busy) as caught:
            list(client.stream("x")) if call == "stream" else client.infer("x")
        assert not caught.value.ticket, "the second refusal has no ticket, and no budget is left for a plain retry"
        with pytest.raises(Busy) as caught:
            Client(script.address, max_retries=0).infer("x")
        assert caught.value.ticket == "T" and caught.value.retry_after == 0.12
        client.infer("x", ticket=caught.value.ticket)
    assert [each.request.ticket for each in script.calls] == ["", "T", "", "T"]
    assert script.calls[1].arrival - script.calls[0].arrival >= 0.12


def test_a_lost_connection_keeps_the_ticket() -> None:
    kept = refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, wire.ERROR_REASON_QUEUE_FULL, 10, ticket="T")
    lost = refuse(grpc.StatusCode.UNAVAILABLE, wire.ERROR_REASON_NO_REPLICA, 10)
    with scripted(kept, lost) as script, Client(script.address) as client:
        client.infer("x")
    assert [each.request.ticket for each in script.calls] == ["", "T", "T"]


@given(st.integers(0, 4), st.none() | st.floats(0, 60), timeouts, st.lists(st.floats(0, 30), max_size=6))
def test_time_limits_count_after_the_wait(
    max_retries: int, wait: float | None, timeout: float | None, pauses: list[float]
) -> None:
    clock = ManualClock()
    effort = RetrySchedule(max_retries, ClientRetryBudget(), clock, Random(1), timeout, None, wait)
    for pause in pauses:
        clock.sleep(pause)
    left, passed = effort.left(), clock.now()
    assert left.total == (None if timeout is None else pytest.approx(timeout - max(0.0, passed - (wait or 0.0))))
    assert left.wait == (None if wait is None else pytest.approx(max(0.0, wait - passed)))


def test_the_last_attempt_asks_for_no_ticket() -> None:
    kept = refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, wire.ERROR_REASON_QUEUE_FULL, 10, ticket="T")
    with scripted(*[kept] * 6) as script:
        asked: list[tuple[int, dict[str, float]]] = [(1, {}), (1, {"wait": 30.0}), (0, {}), (0, {"wait": 30.0})]
        for max_retries, options in asked:
            with Client(script.address, max_retries=max_retries) as client, pytest.raises(Busy):
                client.infer("x", **options)  # type: ignore[arg-type]
        waits = [each.request.wait_ms if each.request.HasField("wait_ms") else None for each in script.calls]
    assert waits[:2] == [0, None] and waits[3:5] == [None, None]
    assert waits[2] is not None and waits[5] is not None and 29_000 < waits[2] <= 30_000 and 29_000 < waits[5] <= 30_000


@pytest.mark.parametrize("call", ["stream", "infer"])
def test_answers_refill_the_retry_budget(call: str) -> None:
    with scripted() as script, Client(script.address) as client:
        while client._budget.spend():
            continue
        for _ in range(10):
            list(client.stream("x")) if call == "stream" else client.infer("x")
        assert client._budget.left == pytest.approx(1)


def test_caller_errors_are_not_retried() -> None:
    refused = refuse(
        grpc.StatusCode.INVALID_ARGUMENT, wire.ERROR_REASON_INVALID_FIELD, field="top_p", limit="in [0, 1]"
    )
    with scripted(refused) as script, Client(script.address) as client:
        with pytest.raises(InvalidRequest) as caught:
            client.infer("x")
        assert (caught.value.field, caught.value.limit) == ("top_p", "in [0, 1]")
    assert len(script.calls) == 1
