"""A request's receipt while it is being written. Small whatever the caller sent: it travels in trailing metadata."""

from collections import deque
from collections.abc import Callable
from functools import partial

from octet.v1 import inference_pb2 as wire
from router.decide.decision import Decision
from router.receipts.clip import clip
from router.receipts.decision_wire import decision_to_wire
from router.reception.ask import Ask

METADATA_KEY = "octet-receipt-bin"
MAX_BYTES = 4608
"""No receipt is larger: gRPC takes 8 KiB of metadata in all, the error stands beside it, and a refused call must not
lose either."""
_ID = 128
_NAME = 64
_STOP = 256
"""All of it: callers compare it with what they asked for."""
_MESSAGE = 200
_DETAIL = 100
_ATTEMPTS = 4
_ATTEMPT_MESSAGE = 60


class ReceiptDraft:
    """Times are the router's clock's, like the ask's arrival."""

    def __init__(self, ask: Ask, now: float, wall_ms: int) -> None:
        self._arrival = ask.arrival
        self._receipt = wire.Receipt()
        self._planned = wire.Between()
        self._unwritten = deque[Callable[[wire.Receipt], None]]([partial(_write_ask, ask, wall_ms)])
        """What led to a replica, in order. It is asked first, and then this is written."""
        self._last = now

    def decided(self, decision: Decision, now: float) -> None:
        """The decision is not changed from here on."""
        self._unwritten.append(partial(_write_decision, decision))
        self._receipt.timings.decided = self._since(now)

    def planned(self, between: wire.Between) -> None:
        """Nor is what stood between."""
        self._unwritten.append(partial(_write_plan, between))
        self._planned = between

    def taken_over(self, first: str) -> None:
        """No replica of whoever was to be asked first was fit to answer; empty: all goes as it was planned."""
        self._unwritten.append(partial(_write_taken_over, first, self._planned))

    def spilled(self, is_spill: bool) -> None:
        self._unwritten.append(partial(_write_spilled, is_spill))

    def write_up(self) -> None:
        """All that was told so far, by whoever has the time. Who reads the draft finds it written in any case."""
        while self._unwritten:
            self._unwritten.popleft()(self._receipt)

    def dispatched(self, now: float) -> None:
        """The first replica is being asked; later calls change nothing."""
        if not self._receipt.timings.HasField("dispatched"):
            self._receipt.timings.dispatched = self._since(now)

    def attempt(
        self,
        specialist: str,
        replica: str,
        seconds: float,
        error: wire.Error | None = None,
        *,
        began: float = 0.0,
        span_id: str = "",
    ) -> None:
        """A replica was asked, at `began`: with an error it did not answer. Of many attempts the last ones are kept."""
        attempts = self._receipt.attempts
        if len(attempts) == _ATTEMPTS:
            del attempts[0]
        attempts.add(
            specialist=clip(specialist, _NAME),
            replica=clip(replica, _NAME),
            reason=wire.ERROR_REASON_UNSPECIFIED if error is None else error.reason,
            message="" if error is None else clip(error.message, _ATTEMPT_MESSAGE),
            seconds=seconds,
            began=max(0.0, began - self._arrival),
            span_id=span_id,
        )

    def accepted(self, specialist: str, replica: str, breaker: str, accepted: wire.Accepted, now: float) -> None:
        """The replica's door let it in. `breaker` is its state when it was chosen."""
        receipt = self._receipt
        receipt.specialist = clip(specialist, _NAME)
        receipt.replica = clip(replica, _NAME)
        receipt.breaker = breaker
        receipt.lane.CopyFrom(accepted.lane)
        receipt.accepted.CopyFrom(accepted)
        receipt.accepted.ClearField("lane")
        receipt.accepted.ClearField("request_id")
        receipt.timings.accepted = self._since(now)

    def first_chunk(self, now: float) -> float:
        """Seconds since arrival."""
        seconds = self._receipt.timings.first_chunk = self._since(now)
        return seconds

    def finished(self, usage: wire.Usage, now: float) -> None:
        self._receipt.usage.CopyFrom(usage)
        if usage.HasField("stop_string"):
            self._receipt.usage.stop_string = clip(usage.stop_string, _STOP)
        self._receipt.timings.answered = self._since(now)

    def validated(self, validation: wire.Validation, now: float) -> None:
        """The whole answer was judged, or could not be."""
        self._receipt.validation.CopyFrom(validation)
        self._since(now)

    def failed(self, error: wire.Error, now: float) -> None:
        self._receipt.ClearField("validation")
        self._receipt.error.CopyFrom(_short(error))
        self._since(now)

    def _write_to(self, receipt: wire.Receipt) -> None:
        self.write_up()
        receipt.CopyFrom(self._receipt)
        receipt.timings.total = self._last - self._arrival

    def wire(self) -> wire.Receipt:
        """As far as it is known; the draft may be written on."""
        receipt = wire.Receipt()
        self._write_to(receipt)
        return receipt

    def routed(self) -> bytes:
        """The event that tells it to the caller, as far as it is known."""
        event = wire.InferEvent()
        self._write_to(event.routed)
        raw: bytes = event.SerializeToString()
        return raw

    def _since(self, now: float) -> float:
        self._last = max(self._last, now)
        return now - self._arrival


def refused_receipt(request_id: str, error: wire.Error, wall_ms: int) -> wire.Receipt:
    """Of a request that did not pass reception: there is nothing more to tell. The id is the caller's, unchecked."""
    return wire.Receipt(request_id=clip(request_id, _ID), created_unix_ms=wall_ms, error=_short(error))


def _write_ask(ask: Ask, wall_ms: int, receipt: wire.Receipt) -> None:
    receipt.request_id = clip(ask.request_id, _ID)
    receipt.trace_id = ask.trace.trace_id
    receipt.created_unix_ms = wall_ms
    receipt.priority = ask.priority
    receipt.session_id = clip(ask.session.name, _ID)
    receipt.session_source = ask.session.source
    receipt.caller = clip(ask.caller.name, _NAME)
    receipt.tenant = clip(ask.caller.tenant, _NAME)
    receipt.span_id = ask.trace.span_id if ask.trace.recorded else ""


def _write_decision(decision: Decision, receipt: wire.Receipt) -> None:
    receipt.decision.CopyFrom(decision_to_wire(decision))


def _write_plan(planned: wire.Between, receipt: wire.Receipt) -> None:
    receipt.between.CopyFrom(planned)
    receipt.between.why = clip(planned.why, _MESSAGE)


def _write_taken_over(first: str, planned: wire.Between, receipt: wire.Receipt) -> None:
    between = receipt.between
    if first or between.why != planned.why:
        because = f"{first} had no replica left that was fit to answer" if first else ""
        between.instead_of = planned.instead_of or clip(first, _NAME)
        between.why = clip("; ".join(each for each in (planned.why, because) if each), _MESSAGE)


def _write_spilled(is_spill: bool, receipt: wire.Receipt) -> None:
    if is_spill or receipt.between.spilled:
        receipt.between.spilled = is_spill


def _short(error: wire.Error) -> wire.Error:
    short = wire.Error()
    short.CopyFrom(error)
    short.message = clip(error.message, _MESSAGE)
    short.field = clip(error.field, _NAME)
    short.limit = clip(error.limit, _DETAIL)
    short.value = clip(error.value, _DETAIL)
    return short
