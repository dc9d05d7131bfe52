"""A request's spans, read off its receipt: a pure function, called when it has ended."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from octet.telemetry.span import Anchor, Span, Value
from octet.v1 import inference_pb2 as wire
from router.reception.ask import Trace
from router.trace.attributes import (
    OPERATION,
    attempt_attributes,
    reason,
    request_attributes,
    route_attributes,
)

FRONT_DOOR, ROUTE, PICK, VERIFY = "octet.front_door", "octet.route", "octet.pick", "octet.verify"


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that has."""

    trace: Trace
    arrival: float
    """On the router's clock."""
    receipt: wire.Receipt


def spans_of(ended: Ended, anchor: Anchor, new_id: Callable[[], str]) -> list[Span]:
    """The front door's first. What stands below an attempt is its replica's to tell."""
    drawing = _Drawing(ended, anchor, new_id)
    return [drawing.front_door(), *drawing.routing(), *drawing.attempts(), *drawing.verifying()]


class _Drawing:
    def __init__(self, ended: Ended, anchor: Anchor, new_id: Callable[[], str]) -> None:
        self._ended = ended
        self._receipt = ended.receipt
        self._anchor = anchor
        self._new_id = new_id

    def front_door(self) -> Span:
        trace, receipt = self._ended.trace, self._receipt
        return Span(
            FRONT_DOOR,
            trace.trace_id,
            trace.span_id,
            trace.parent_id,
            self._at(0.0),
            self._at(receipt.timings.total),
            request_attributes(receipt),
            kind="server",
            error=reason(receipt.error.reason) or None,
            state=trace.state,
            is_remote=bool(trace.parent_id),
        )

    def routing(self) -> Iterator[Span]:
        """To the decision, and from there to the first replica that is asked. Where one of them was the end of it, it
        says so."""
        receipt, timings = self._receipt, self._receipt.timings
        error = reason(receipt.error.reason) or None
        if not timings.HasField("decided"):
            yield self._stage(ROUTE, 0.0, timings.total, error=error)
            return
        nobody = error if not receipt.decision.primary else None
        yield self._stage(ROUTE, 0.0, timings.decided, route_attributes(receipt.decision), error=nobody)
        if timings.HasField("dispatched"):
            yield self._stage(PICK, timings.decided, timings.dispatched)
        elif receipt.decision.primary:
            yield self._stage(PICK, timings.decided, timings.total, error=error)

    def attempts(self) -> Iterator[Span]:
        trace = self._ended.trace
        for attempt in self._receipt.attempts:
            yield Span(
                f"{OPERATION} {attempt.specialist}",
                trace.trace_id,
                attempt.span_id or self._new_id(),
                trace.span_id,
                self._at(attempt.began),
                self._at(attempt.began + attempt.seconds),
                attempt_attributes(attempt, self._receipt),
                kind="client",
                error=reason(attempt.reason) or None,
                state=trace.state,
            )

    def verifying(self) -> Iterator[Span]:
        receipt, timings = self._receipt, self._receipt.timings
        if receipt.HasField("validation") and timings.HasField("answered"):
            said = receipt.validation
            attributes: dict[str, Value] = {"octet.verifier": said.verifier, "octet.outcome": said.outcome}
            yield self._stage(VERIFY, timings.answered, timings.total, attributes)

    def _stage(
        self, name: str, start: float, end: float, attributes: dict[str, Value] | None = None, error: str | None = None
    ) -> Span:
        trace = self._ended.trace
        return Span(
            name,
            trace.trace_id,
            self._new_id(),
            trace.span_id,
            self._at(start),
            self._at(end),
            attributes or {},
            error=error,
            state=trace.state,
        )

    def _at(self, seconds: float) -> int:
        """Since the request's arrival."""
        return self._anchor.ns(self._ended.arrival + seconds)
