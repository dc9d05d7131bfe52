"""Observers of requests, and their notification."""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from octet.v1 import inference_pb2 as wire
from router.request import Request

_log = logging.getLogger(__name__)


class TokenGap(NamedTuple):
    seconds: float  # from one token to the next, as they leave the router
    num_tokens: int  # how many tokens followed after this time


class RequestObserver:
    """Observes requests on the event loop, while callers wait: work beyond a few microseconds must be deferred."""

    def gaps(self, specialist: str, gaps: Sequence[TokenGap]) -> None: ...

    def began(self, specialist: str, ttft: float, admission: float) -> None:
        """The first chunk has arrived. `ttft` counts seconds from the request's arrival at the router, `admission` from
        its acceptance by the replica."""

    def ended(self, request: Request, receipt: wire.Receipt) -> None:
        """An admitted request has ended, with any outcome. The receipt must not be changed."""

    def rejected(self, error: wire.Error) -> None:
        """A request has failed validation, or the router was full."""


class RequestObservers:
    """Passes every event to all observers, even if one of them raises."""

    def __init__(self) -> None:
        self._observers: list[RequestObserver] = []
        self._gap_observers: list[RequestObserver] = []

    def add(self, observer: RequestObserver, *, gaps: bool = True) -> None:
        """Add an observer. If `gaps` is False, it does not receive the times between tokens."""
        self._observers.append(observer)
        if gaps:
            self._gap_observers.append(observer)

    def gaps(self, specialist: str, gaps: Sequence[TokenGap]) -> None:
        self._notify(self._gap_observers, "gaps", specialist, gaps)

    def began(self, specialist: str, ttft: float, admission: float) -> None:
        self._notify(self._observers, "began", specialist, ttft, admission)

    def ended(self, request: Request, receipt: wire.Receipt) -> None:
        self._notify(self._observers, "ended", request, receipt)

    def rejected(self, error: wire.Error) -> None:
        self._notify(self._observers, "rejected", error)

    def _notify(self, observers: list[RequestObserver], event: str, *arguments: Any) -> None:
        for observer in observers:
            try:
                getattr(observer, event)(*arguments)
            except Exception:
                _log.error("%s failed at the event %s.", type(observer).__name__, event, exc_info=True)
