"""When a job that was refused is tried again."""

import grpc
import pytest

from octet.rpc.refusal import Refusal, past_deadline, queue_full
from octet.v1 import error_pb2 as wire
from router.jobs.again import seconds_until_again
from router.replicas.failure import lost, name_a_time

TIMES = range(12)


def test_a_time_that_is_named_counts() -> None:
    assert [seconds_until_again(queue_full("waiting", 1, 7.0), times, 0.5) for times in TIMES] == [7.0] * len(TIMES)


def test_a_job_that_is_lost_again_and_again_takes_its_time() -> None:
    """What callers are told who wait for their answer would have it try every moment for as long as nobody serves."""
    refusal = lost("writer-0", "the call ended with INTERNAL")
    name_a_time(refusal, "a job")
    assert refusal.error.retry_after_ms <= 300
    pauses = [seconds_until_again(refusal, times, 0.5) for times in TIMES]
    assert pauses == [seconds_until_again(queue_full("waiting", 1, None), times, 0.5) for times in TIMES]
    assert pauses == sorted(each for each in pauses if each is not None)
    assert pauses[-1] == pytest.approx(22.5)


def test_what_stays_so_is_not_tried_again() -> None:
    late = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, wire.ERROR_REASON_DEADLINE_UNREACHABLE, "never")
    assert seconds_until_again(late, 0, 0.5) is None
    assert seconds_until_again(past_deadline(), 0, 0.5) is None
