"""Whoever wants to know how requests fare: windows, metrics, traces. One place where they are told."""

import logging
from collections.abc import Sequence
from typing import Protocol

from octet.v1 import inference_pb2 as wire
from router.reception.ask import Ask

_log = logging.getLogger(__name__)


class Observer(Protocol):
    """Told on the event loop while callers wait: whatever takes longer than some microseconds is left for later."""

    def gaps(self, specialist: str, seconds: Sequence[float]) -> None:
        """Between any two pieces of an answer, as they left the router: some at once, soon behind the last of them."""

    def began(self, specialist: str, ttft: float, admission: float) -> None:
        """Once for every request that is answered at all, when the first piece leaves the router: so many seconds after
        it came, and after the replica took it. It has not ended yet, and `ended` follows."""

    def ended(self, ask: Ask, receipt: wire.Receipt) -> None:
        """Once for every request that was let in, whatever became of it. The receipt is not to be changed."""

    def turned_away(self, error: wire.Error) -> None:
        """Once for every request that was not let in."""


class Observers:
    """A mistake of theirs is nobody else's."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []
        self._of_gaps: list[Observer] = []

    def add(self, observer: Observer, *, gaps: bool = True) -> None:
        """Without `gaps` it is not told of those: there is nearly one for every token."""
        self._observers.append(observer)
        if gaps:
            self._of_gaps.append(observer)

    def gaps(self, specialist: str, seconds: Sequence[float]) -> None:
        for observer in self._of_gaps:
            try:
                observer.gaps(specialist, seconds)
            except Exception:
                _log.error("%s failed at gaps", type(observer).__name__, exc_info=True)

    def began(self, specialist: str, ttft: float, admission: float) -> None:
        for observer in self._observers:
            try:
                observer.began(specialist, ttft, admission)
            except Exception:
                _log.error("%s failed at a first piece", type(observer).__name__, exc_info=True)

    def ended(self, ask: Ask, receipt: wire.Receipt) -> None:
        for observer in self._observers:
            try:
                observer.ended(ask, receipt)
            except Exception:
                _log.error("%s failed at %s", type(observer).__name__, ask.request_id, exc_info=True)

    def turned_away(self, error: wire.Error) -> None:
        for observer in self._observers:
            try:
                observer.turned_away(error)
            except Exception:
                _log.error("%s failed at a request that was turned away", type(observer).__name__, exc_info=True)
