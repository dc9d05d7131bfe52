"""Observers hear of every gap between two tokens once, in order, and soon."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.clock import ManualClock
from octet.v1 import inference_pb2 as wire
from router.dispatch.record import TELL_SECONDS, Record
from router.observe.observers import Observers
from router.receipts.receipt import ReceiptDraft
from router.reception.ask import Ask, Trace, Turn
from router.replicas.attempt import Attempt
from tests.router.replicas.builders import replica


class Listener:
    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.heard: list[tuple[float, float]] = []
        """When, and how long the gap was."""
        self.began_with: list[float] = []

    def gaps(self, specialist: str, seconds: Sequence[float]) -> None:
        assert specialist == "stl" and seconds
        self.heard += [(self._clock.now(), each) for each in seconds]

    def began(self, specialist: str, ttft: float, admission: float) -> None:
        self.began_with.append(ttft)

    def ended(self, ask: Any, receipt: Any) -> None: ...

    def turned_away(self, error: Any) -> None: ...


@given(st.lists(st.floats(0.0001, 0.5), max_size=40), st.booleans())
def test_every_gap_is_told_once_and_soon(gaps: list[float], fails: bool) -> None:
    clock = ManualClock()
    listener, deaf, observers = Listener(clock), Listener(clock), Observers()
    observers.add(listener)
    observers.add(deaf, gaps=False)
    ask = Ask("r", (Turn("user", "hello"),), "hello", 0.0, 60.0, Trace("0" * 32, ""))
    record = Record(ReceiptDraft(ask, 0.0, 0), clock, observers)
    record.asked(Attempt(replica(clock)))
    record.accepted(wire.Accepted())
    record.first_chunk()
    assert len(listener.began_with) == 1, "the first token is told at once"
    came = []
    for gap in gaps:
        clock.sleep(gap)
        came.append(clock.now())
        record.next_chunk()
        waits = [at for at in came[len(listener.heard) :] if clock.now() - at >= TELL_SECONDS]
        assert not waits, "what has waited for so long is told with the next token"
    record.ended(wire.Error() if fails else None)
    assert [each for _, each in listener.heard] == pytest.approx(gaps)
    assert not deaf.heard
