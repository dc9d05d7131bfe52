"""Observers get every gap between two tokens once, in order and without much delay."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.clock import ManualClock
from octet.v1 import inference_pb2 as wire
from router.dispatch.attempts import ReplicaAttempt
from router.dispatch.dispatcher import REPORT_SECONDS, DispatchRecorder
from router.observe.observers import RequestObserver, RequestObservers
from router.receipts import ReceiptDraft
from router.request import Request, TraceContext
from tests.router.replicas.builders import replica


class Listener(RequestObserver):
    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.reported: list[tuple[float, float]] = []
        """The time and the length of each gap."""
        self.began_with: list[float] = []

    def gaps(self, specialist: str, seconds: Sequence[float]) -> None:
        assert specialist == "stl" and seconds
        self.reported += [(self._clock.now(), each) for each in seconds]

    def began(self, specialist: str, ttft: float, admission: float) -> None:
        self.began_with.append(ttft)

    def ended(self, ask: Any, receipt: Any) -> None: ...

    def rejected(self, error: Any) -> None: ...


@given(st.lists(st.floats(0.0001, 0.5), max_size=40), st.booleans())
def test_every_gap_is_reported_once_and_soon(gaps: list[float], fails: bool) -> None:
    clock = ManualClock()
    listener, without_gaps, observers = Listener(clock), Listener(clock), RequestObservers()
    observers.add(listener)
    observers.add(without_gaps, gaps=False)
    ask = Request("r", (wire.Message(role="user", content="hello"),), "hello", 0.0, 60.0, TraceContext("0" * 32, ""))
    ask.draft = ReceiptDraft(ask, 0.0, 0)
    record = DispatchRecorder(ask, clock, observers)
    record.attempt_started(ReplicaAttempt(replica(clock)))
    record.accepted(wire.Accepted())
    record.first_chunk()
    assert len(listener.began_with) == 1, "the first token must be reported immediately"
    came = []
    for gap in gaps:
        clock.sleep(gap)
        came.append(clock.now())
        record.next_chunk()
        waits = [at for at in came[len(listener.reported) :] if clock.now() - at >= REPORT_SECONDS]
        assert not waits, "older gaps must be reported with the next token"
    record.attempt_ended(wire.Error() if fails else None)
    assert [each for _, each in listener.reported] == pytest.approx(gaps)
    assert not without_gaps.reported
