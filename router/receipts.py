"""Receipts: written while a request runs, and limited in size."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from octet.rpc.messages import copy_message
from octet.v1 import inference_pb2 as wire
from router.request import DecisionSource, Request, RoutingDecision

RECEIPT_METADATA_KEY = "octet-receipt-bin"
MAX_RECEIPT_BYTES = 4992  # gRPC allows 8 KiB of metadata, which must hold the error and the receipt of a refused call
_ELLIPSIS = "…"
_MAX_ID = 128
_MAX_NAME = 64
_MAX_STOP = 256  # no stop string is longer, so none is clipped: callers compare it with the one they sent
_MAX_MESSAGE = 200
_MAX_DETAIL = 100
_MAX_ATTEMPTS = 4
_MAX_ATTEMPT_MESSAGE = 60
_MAX_DECISION_WHY = 240
_MAX_NOTE = 160
_MAX_NOTES = 480
_MAX_SCORES = 480  # bytes of names and probabilities; an ensemble of eight needs half of it
_SCORE_BYTES = 15  # a probability in protobuf, with its tags
_MAX_ADAPTERS = 4
_SOURCES: Mapping[DecisionSource, wire.DecisionSource] = {
    "forced": wire.DECISION_SOURCE_FORCED,
    "intent": wire.DECISION_SOURCE_INTENT,
    "rule": wire.DECISION_SOURCE_RULE,
    "classifier": wire.DECISION_SOURCE_CLASSIFIER,
    "default": wire.DECISION_SOURCE_DEFAULT,
    "bare": wire.DECISION_SOURCE_BARE,
    "unrouted": wire.DECISION_SOURCE_UNSPECIFIED,
}


class ReceiptDraft:
    """The receipt of a running request. Times are on the router's clock."""

    def __init__(self, request: Request, now: float, wall_ms: int) -> None:
        self._arrival = request.arrival
        self._receipt = wire.Receipt()
        self._planned = wire.Between()
        self._pending: deque[Callable[[], None]] = deque()  # writes that wait, in order, until the request is sent
        self._pending.append(partial(self._write_request, request, wall_ms))
        self._last = now
        self.write_shadow: Callable[[wire.Receipt], None] | None = None
        """Writes what has become of the request's shadow into a receipt; None if no shadow is planned."""

    def _write_request(self, request: Request, wall_ms: int) -> None:
        receipt, trace = self._receipt, request.trace
        receipt.request_id = clip_bytes(request.request_id, _MAX_ID)
        receipt.trace_id = trace.trace_id
        receipt.created_unix_ms = wall_ms
        receipt.priority = request.priority
        receipt.session_id = clip_bytes(request.session.name, _MAX_ID)
        receipt.session_source = request.session.source
        receipt.caller = clip_bytes(request.caller.name, _MAX_NAME)
        receipt.tenant = clip_bytes(request.caller.tenant, _MAX_NAME)
        receipt.span_id = trace.span_id if trace.recorded else ""

    def decided(self, decision: RoutingDecision, now: float) -> None:
        self._pending.append(lambda: self._receipt.decision.CopyFrom(decision_to_wire(decision)))
        self._receipt.timings.decided = self._since_arrival(now)

    def planned(self, between: wire.Between) -> None:
        def write() -> None:
            self._receipt.between.CopyFrom(between)
            self._receipt.between.why = clip_bytes(between.why, _MAX_MESSAGE)

        self._pending.append(write)
        self._planned = between

    def dispatched_to(self, specialist: str, is_spill: bool, taken_over_from: str) -> None:
        """Record the specialist of the next attempt. `is_spill` is set if the first choice is full; `taken_over_from`
        names the specialist that has no suitable replica, if any."""

        def write() -> None:
            between, planned = self._receipt.between, self._planned
            is_primary = clip_bytes(specialist, _MAX_NAME) == self._receipt.decision.primary
            reason = f"no replica of {taken_over_from} could answer" if taken_over_from else ""
            instead_of = "" if is_primary else planned.instead_of or clip_bytes(taken_over_from, _MAX_NAME)
            why = clip_bytes("; ".join(each for each in (planned.why, reason) if each), _MAX_MESSAGE)
            is_spilled = is_spill and not is_primary
            if (between.spilled, between.instead_of, between.why) != (is_spilled, instead_of, why):
                between.spilled, between.instead_of, between.why = is_spilled, instead_of, why

        self._pending.append(write)

    def write_pending(self) -> None:
        """Write the fields that were deferred until the request is sent."""
        while self._pending:
            self._pending.popleft()()

    def dispatched(self, now: float) -> None:
        """Record the start of the first attempt; later calls change nothing."""
        if not self._receipt.timings.HasField("dispatched"):
            self._receipt.timings.dispatched = self._since_arrival(now)

    def waited(self, seconds: float) -> None:
        if seconds > 0:
            self._receipt.timings.waited = seconds

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
        """Record an attempt, which succeeded unless `error` is given. Only the last `_MAX_ATTEMPTS` are kept."""
        attempts = self._receipt.attempts
        if len(attempts) == _MAX_ATTEMPTS:
            del attempts[0]
        attempts.add(
            specialist=clip_bytes(specialist, _MAX_NAME),
            replica=clip_bytes(replica, _MAX_NAME),
            reason=error.reason if error else wire.ERROR_REASON_UNSPECIFIED,
            message=clip_bytes(error.message, _MAX_ATTEMPT_MESSAGE) if error else "",
            seconds=seconds,
            began=max(0.0, began - self._arrival),
            span_id=span_id,
        )

    def accepted(
        self,
        specialist: str,
        replica: str,
        breaker: str,
        accepted: wire.Accepted,
        now: float,
        experts: Sequence[str] = (),
    ) -> None:
        """Record which replica accepted the request. `breaker` is the state of its breaker when it was chosen.
        `experts` are the specialist and its adapters, by the names that callers use."""
        receipt = self._receipt
        receipt.experts_used[:] = [clip_bytes(each, _MAX_NAME) for each in experts]
        receipt.specialist = clip_bytes(specialist, _MAX_NAME)
        receipt.replica = clip_bytes(replica, _MAX_NAME)
        receipt.breaker = breaker
        receipt.lane.CopyFrom(accepted.lane)
        receipt.accepted.CopyFrom(accepted)
        receipt.accepted.ClearField("lane")
        receipt.accepted.ClearField("request_id")
        receipt.timings.accepted = self._since_arrival(now)

    def first_chunk(self, now: float) -> float:
        seconds = self._receipt.timings.first_chunk = self._since_arrival(now)
        return seconds

    def finished(self, usage: wire.Usage, now: float) -> None:
        self._receipt.usage.CopyFrom(usage)
        if usage.HasField("stop_string"):
            self._receipt.usage.stop_string = clip_bytes(usage.stop_string, _MAX_STOP)
        self._receipt.timings.answered = self._since_arrival(now)

    def validated(self, validation: wire.Validation, now: float) -> None:
        self._receipt.validation.CopyFrom(validation)
        self._since_arrival(now)

    def failed(self, error: wire.Error, now: float) -> None:
        self._receipt.ClearField("validation")
        self._receipt.error.CopyFrom(_clip_error(error))
        self._since_arrival(now)

    def to_wire(self, receipt: wire.Receipt | None = None) -> wire.Receipt:
        """Copy the receipt so far into `receipt`, by default a new one, and return the copy."""
        self.write_pending()
        copy = wire.Receipt() if receipt is None else receipt
        copy.CopyFrom(self._receipt)
        if self.write_shadow is not None:
            self.write_shadow(copy)
        copy.timings.total = self._last - self._arrival
        return copy

    def routed_event(self) -> bytes:
        event = wire.InferEvent()
        self.to_wire(event.routed)
        raw: bytes = event.SerializeToString()
        return raw

    def _since_arrival(self, now: float) -> float:
        self._last = max(self._last, now)
        return now - self._arrival


def refused_receipt(request_id: str, error: wire.Error, wall_ms: int) -> wire.Receipt:
    """Return a receipt for a request that was refused before validation. `request_id` may be invalid."""
    return wire.Receipt(request_id=clip_bytes(request_id, _MAX_ID), created_unix_ms=wall_ms, error=_clip_error(error))


def decision_to_wire(decision: RoutingDecision) -> wire.Decision:
    """Convert a decision. Logit biases are left out, and long lists are shortened."""
    num_biases = len(decision.sampling.logit_bias)
    notes = [f"{num_biases} logit biases are applied but not listed"] if num_biases else []
    sampling = copy_message(decision.sampling)
    sampling.ClearField("logit_bias")
    return wire.Decision(
        source=_SOURCES[decision.source],
        decided_by=clip_bytes(decision.decided_by, _MAX_NAME),
        why=clip_bytes(decision.why, _MAX_DECISION_WHY),
        primary=clip_bytes(decision.primary, _MAX_NAME),
        second_choice=clip_bytes(decision.second_choice, _MAX_NAME),
        distribution=_scores_to_wire(decision.distribution),
        confidence=decision.confidence,
        intent=clip_bytes(decision.intent, _MAX_NAME),
        task=clip_bytes(decision.task, _MAX_NAME),
        adapters=[clip_bytes(name, _MAX_NAME) for name in decision.adapters[:_MAX_ADAPTERS]],
        sampling=sampling,
        max_tokens=decision.max_tokens,
        max_tokens_from=decision.max_tokens_from if decision.max_tokens else "",
        notes=clip_list([*notes, *decision.notes], _MAX_NOTE, _MAX_NOTES),
        request_digest=decision.request_digest,
        config_digest=decision.config_digest,
        classifier_digest=decision.classifier_digest,
    )


def _scores_to_wire(distribution: tuple[tuple[str, float], ...]) -> list[wire.Score]:
    """Return as many of the highest scores as fit into `_MAX_SCORES` bytes."""
    bytes_left = _MAX_SCORES
    scores: list[wire.Score] = []
    for name, probability in distribution:
        clipped = clip_bytes(name, _MAX_NAME)
        bytes_left -= len(clipped.encode()) + _SCORE_BYTES
        if bytes_left < 0:
            break
        scores.append(wire.Score(specialist=clipped, probability=probability))
    return scores


def clip_bytes(text: str, max_bytes: int) -> str:
    """Truncate to at most `max_bytes` bytes of UTF-8, so that a caller cannot control the size of a receipt."""
    raw = text.encode()
    if len(raw) <= max_bytes:
        return text
    return raw[: max_bytes - len(_ELLIPSIS.encode())].decode(errors="ignore") + _ELLIPSIS


def clip_list(texts: Iterable[str], max_each: int, max_total: int) -> list[str]:
    kept: list[str] = []
    for text in texts:
        clipped = clip_bytes(text, max_each)
        max_total -= len(clipped.encode())
        if max_total < 0:
            break
        kept.append(clipped)
    return kept


def _clip_error(error: wire.Error) -> wire.Error:
    clipped = copy_message(error)
    for secret in ("ticket", "place"):
        clipped.ClearField(secret)
    clipped.message = clip_bytes(error.message, _MAX_MESSAGE)
    clipped.field = clip_bytes(error.field, _MAX_NAME)
    clipped.limit = clip_bytes(error.limit, _MAX_DETAIL)
    clipped.value = clip_bytes(error.value, _MAX_DETAIL)
    return clipped
