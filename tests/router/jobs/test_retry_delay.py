"""The delay before a refused job is tried again."""

import pytest

from octet.rpc.refusal import Refusal, deadline_exceeded, queue_full
from octet.v1 import error_pb2 as wire
from router.dispatch.attempts import replica_lost, set_retry_after
from router.jobs.attempt import retry_delay

TIMES = range(12)


def test_a_retry_after_is_respected() -> None:
    assert [retry_delay(queue_full("waiting", 1, 7.0), times, 0.5) for times in TIMES] == [7.0] * len(TIMES)


def test_a_job_lost_repeatedly_backs_off() -> None:
    """The refusal suggests a retry after at most 0.3 s, which suits waiting callers. A job waits longer, because
    otherwise it would retry constantly while no replica serves."""
    refusal = replica_lost("writer-0", "the call ended with INTERNAL")
    set_retry_after(refusal, "a job", 0.0)
    assert refusal.error.retry_after_ms <= 300
    pauses = [retry_delay(refusal, times, 0.5) for times in TIMES]
    assert pauses == [retry_delay(queue_full("waiting", 1, None), times, 0.5) for times in TIMES]
    assert pauses == sorted(each for each in pauses if each is not None)
    assert pauses[-1] == pytest.approx(22.5)


def test_a_permanent_refusal_is_not_retried() -> None:
    late = Refusal(wire.ERROR_REASON_DEADLINE_UNREACHABLE, "never")
    assert retry_delay(late, 0, 0.5) is None
    assert retry_delay(deadline_exceeded(), 0, 0.5) is None
