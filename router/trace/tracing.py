"""Where requests that are traced are told of: each in one piece, when it has ended; what comes of it later, later."""

from collections.abc import Callable, Sequence

from octet.clock import Clock
from octet.telemetry.outbox import Outbox
from octet.telemetry.span import Anchor, Span, SpanIds, Value
from octet.v1 import inference_pb2 as wire
from router.after.judged import Judged
from router.reception.ask import Ask
from router.shadow.landed import Landed
from router.trace.attributes import OPERATION, PROVIDER, usage_attributes
from router.trace.spans import VERIFY, Ended, spans_of


class Tracing:
    """An observer. Belongs to the event loop: what takes longer than some microseconds is left to the outbox."""

    def __init__(self, outbox: Outbox, clock: Clock, wall_ns: Callable[[], int], draw: Callable[[int], bytes]) -> None:
        """`wall_ns` is nanoseconds since 1970; `draw(n)` gives n random bytes."""
        self._outbox = outbox
        self._clock = clock
        self._wall_ns = wall_ns
        self._ids = SpanIds(draw)

    def gaps(self, specialist: str, seconds: Sequence[float]) -> None:
        """None is a stage of its own."""

    def began(self, specialist: str, ttft: float, admission: float) -> None:
        """Told with the rest, when it has ended."""

    def turned_away(self, error: wire.Error) -> None:
        """It has no trace: nobody has read it."""

    def ended(self, ask: Ask, receipt: wire.Receipt) -> None:
        if not ask.trace.recorded:
            return
        ended, anchor = Ended(ask.trace, ask.arrival, receipt), self._anchor()
        self._outbox.put(lambda: spans_of(ended, anchor, self._ids.new))

    def landed(self, landed: Landed) -> None:
        """A copy, whatever came of it."""
        anchor = self._anchor()
        self._outbox.put(lambda: [_shadow_span(landed, anchor)])

    def judged(self, judged: Judged) -> None:
        """An answer, while nobody waited."""
        if judged.receipt.span_id:
            anchor = self._anchor()
            self._outbox.put(lambda: [_verdict_span(judged, anchor, self._ids.new())])

    def _anchor(self) -> Anchor:
        return Anchor(self._clock.now(), self._wall_ns())


def _shadow_span(landed: Landed, anchor: Anchor) -> Span:
    specialist = landed.order.way.specialist
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": OPERATION,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": specialist,
        "octet.specialist": specialist,
        "octet.replica": landed.replica,
        "octet.shadow": True,
        "octet.shadow.why": landed.order.why,
        "octet.shadow.ending": landed.ending,
    }
    if landed.ending == "answered":
        attributes |= usage_attributes(landed.usage)
    return Span(
        f"{OPERATION} {specialist}",
        landed.primary.trace_id,
        landed.span_id,
        landed.primary.span_id,
        anchor.ns(landed.began),
        anchor.ns(landed.ended),
        attributes,
        kind="client",
        error="failed" if landed.ending == "failed" else None,
    )


def _verdict_span(judged: Judged, anchor: Anchor, span_id: str) -> Span:
    receipt = judged.receipt
    attributes: dict[str, Value] = {
        "octet.specialist": judged.specialist,
        "octet.verifier": judged.verifier,
        "octet.outcome": judged.outcome,
        "octet.afterwards": True,
        "octet.shadow": judged.is_shadow,
    }
    return Span(
        VERIFY,
        receipt.trace_id,
        span_id,
        receipt.span_id,
        anchor.ns(judged.began),
        anchor.ns(judged.ended),
        attributes,
    )
