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
from router.dispatch.tickets import Tickets
from router.observe.observers import RequestObserver, RequestObservers, TokenGap
from router.receipts import ReceiptDraft
from router.request import Request, TraceContext
from tests.router.replicas.builders import replica


class Listener(RequestObserver):
    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.reported: list[tuple[float, float]] = []
        """The time and the length of each gap."""
        self.began_with: list[float] = []

    def gaps(self, specialist: str, gaps: Sequence[TokenGap]) -> None:
        assert specialist == "stl" and gaps
        self.reported += [(self._clock.now(), seconds) for seconds, count in gaps for _ in range(count)]

    def began(self, specialist: str, ttft: float, admission: float) -> None:
        self.began_with.append(ttft)

    def ended(self, ask: Any, receipt: Any) -> None: ...

    def rejected(self, error: Any) -> None: ...


class Recorded:
    """A recorder of one answer whose replica has accepted the request, and its listeners."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.listener, self.without_gaps = Listener(self.clock), Listener(self.clock)
        observers = RequestObservers()
        observers.add(self.listener)
        observers.add(self.without_gaps, gaps=False)
        hello = wire.Message(role="user", content="hello")
        ask = Request("r", (hello,), "hello", 0.0, 60.0, TraceContext("0" * 32, ""))
        ask.draft = ReceiptDraft(ask, 0.0, 0)
        tickets = Tickets(lambda: (), lambda: 0.0, lambda: None).open(ask)
        self.record = DispatchRecorder(ask, self.clock, observers, tickets)
        self.record.attempt_started(ReplicaAttempt(replica(self.clock)))
        self.record.accepted(wire.Accepted())


@given(st.lists(st.floats(0.0001, 0.5), max_size=40), st.booleans())
def test_every_gap_is_reported_once_and_soon(gaps: list[float], fails: bool) -> None:
    answer = Recorded()
    clock, listener, record = answer.clock, answer.listener, answer.record
    record.first_chunk(1)
    assert len(listener.began_with) == 1, "the first token must be reported immediately"
    came = []
    for gap in gaps:
        clock.sleep(gap)
        came.append(clock.now())
        record.next_chunk(1)
        waits = [at for at in came[len(listener.reported) :] if clock.now() - at >= REPORT_SECONDS]
        assert not waits, "older gaps must be reported with the next token"
    record.attempt_ended(wire.Error() if fails else None)
    assert [each for _, each in listener.reported] == pytest.approx(gaps)
    assert not answer.without_gaps.reported


CHUNKS = st.lists(st.tuples(st.floats(0.0001, 2.0), st.integers(0, 12)), min_size=1, max_size=40)


@given(CHUNKS)
def test_n_tokens_have_n_minus_one_gaps_whose_sum_is_the_streaming_time(chunks: list[tuple[float, int]]) -> None:
    answer = Recorded()
    carried = []  # when chunks with tokens arrived
    for number, (seconds, num_tokens) in enumerate(chunks):
        answer.clock.sleep(seconds)
        (answer.record.next_chunk if number else answer.record.first_chunk)(num_tokens)
        carried += [answer.clock.now()] if num_tokens else []
    answer.record.attempt_ended(None)
    gaps = [seconds for _, seconds in answer.listener.reported]
    assert len(gaps) == max(0, sum(num_tokens for _, num_tokens in chunks) - 1)
    assert sum(gaps) == pytest.approx(carried[-1] - carried[0] if carried else 0.0)
    assert len(answer.listener.began_with) == 1


def test_the_time_of_a_chunk_is_divided_among_its_tokens() -> None:
    answer = Recorded()
    answer.record.first_chunk(3)
    for seconds, num_tokens in ((0.4, 4), (0.2, 0), (0.1, 1)):
        answer.clock.sleep(seconds)
        answer.record.next_chunk(num_tokens)
    answer.record.attempt_ended(None)
    assert [seconds for _, seconds in answer.listener.reported] == pytest.approx([0, 0, 0.1, 0.1, 0.1, 0.1, 0.3])
