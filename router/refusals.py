"""Typed refusals of the router: the reason, the field, the limit and the value."""

from collections.abc import Iterable, Mapping, Sequence

import grpc

from octet.config.ensemble import Ensemble
from octet.limits import shorten
from octet.rpc.refusal import Refusal, cancelled, deadline_exceeded, invalid_field
from octet.v1 import error_pb2 as wire
from router.request import Request, RoutingDecision

_DEADLINE_GRAIN = 0.05  # seconds
_DEADLINE_ROUNDING = 0.01  # a share of the time from the arrival of the request to its deadline
_KNOB_SETTERS: Mapping[str, str] = {"": "the configuration", "operator": "an operator"}
_NAME_ONE = "a request can name one, as model octet/NAME over HTTP or in force_specialists"
_FORCED_ONLY = "the caller allows no other specialist (force_specialists)"


def no_specialist(decision: RoutingDecision, ensemble: Ensemble) -> Refusal:
    """Refuse a request that no specialist should answer. A retry helps only if the classifier was unavailable."""
    code = grpc.StatusCode.FAILED_PRECONDITION if decision.decided_by else grpc.StatusCode.UNAVAILABLE
    scope = "requests that fit none" if ensemble.classifier.path is None else "small talk and unclear requests"
    setting = f"an operator can set `default`, a specialist for {scope}"
    if ensemble.default_name is not None:
        setting = f"the `default` specialist, {ensemble.default_name}, is only for {scope}, and may be excluded"
    message = f"no specialist should answer this request: {decision.why}; {_NAME_ONE}; {setting}"
    return Refusal(wire.ERROR_REASON_NO_SPECIALIST, message, code=code)


def unknown_specialist(field: str, name: str, known: Iterable[str]) -> Refusal:
    listed, shown = ", ".join(known), shorten(name)
    message = f"unknown specialist {shown}; known specialists are {listed}"
    limit = f"one of {listed}"
    return Refusal(wire.ERROR_REASON_UNKNOWN_SPECIALIST, message, field=field, limit=limit, value=shown)


def no_embeddings(forced: Sequence[str], known: Sequence[str]) -> Refusal:
    """Refuse an embedding that no specialist computes, or for which the caller must name one of several."""
    listed = ", ".join(known)
    subject = f"the specialist {forced[0]}" if forced else "no specialist"
    problem = f"{subject} {'does not compute' if forced else 'computes'} embeddings"
    if not known:
        advice = "set `embeddings: true` for a specialist in the router's configuration"
    else:
        problem = problem if forced else "several specialists compute embeddings"
        advice = f"name one that does: {listed} (over HTTP, the model octet/{known[0]})"
    limit = f"one of {listed}" if known else ""
    return Refusal(wire.ERROR_REASON_UNKNOWN_SPECIALIST, f"{problem}; {advice}", field="force_specialists", limit=limit)


def unknown_intent(name: str, known: Iterable[str]) -> Refusal:
    listed = ", ".join(known)
    limit = f"one of {listed}" if listed else "unset, because no intents are configured"
    return invalid_field("intent", limit, shorten(name))


def store_unavailable(message: str) -> Refusal:
    return Refusal(wire.ERROR_REASON_STORE_UNAVAILABLE, message)


def no_replica(specialist: str, retry_after: float | None = None) -> Refusal:
    message = f"no replica of {specialist} can be reached"
    return Refusal(wire.ERROR_REASON_NO_REPLICA, message, retry_after=retry_after)


def no_fit_replica(reasons: Iterable[str]) -> Refusal:
    return Refusal(wire.ERROR_REASON_NO_REPLICA, "; ".join(reasons))


def content_quarantined(num_deaths: int, seconds: float) -> Refusal:
    """Refuse content that was in flight when replicas died. No retry-after: a retry would send the same content."""
    died = f"{num_deaths} replicas died with this request in flight"
    return Refusal(wire.ERROR_REASON_QUARANTINED, f"{died}; the request is refused for another {seconds:.0f} s")


def caller_gone(request: Request, now: float) -> Refusal:
    """Return the refusal to record for a caller that is gone: deadline exceeded or cancelled. The caller's deadline may
    be slightly earlier than `request.deadline`, because gRPC rounds the remaining time up, by at most 1 %."""
    grain = max(_DEADLINE_GRAIN, (request.deadline - request.arrival) * _DEADLINE_ROUNDING)
    return deadline_exceeded() if now >= request.deadline - grain else cancelled()


def below_priority_floor(intent: str, specialist: str, floor: int, set_by: str, priority: int) -> Refusal:
    """Refuse a request below the priority floor. No retry-after: only a higher priority or a lower floor would help."""
    rule = f"the intent {intent!r} needs priority {floor} or higher at {specialist}"
    message = f"{rule} (set by {_KNOB_SETTERS.get(set_by, set_by)}); this request has priority {priority}"
    limit = f"at least {floor}"
    return Refusal(wire.ERROR_REASON_BELOW_FLOOR, message, field="priority", limit=limit, value=str(priority))


def specialist_demoted(primary: str, reason: str, rejected: Iterable[str], *, forced: bool) -> Refusal:
    """`rejected` states why each fallback cannot serve."""
    reasons = "; ".join(rejected) or "no fallback is configured"
    message = f"{primary} does not serve now: {reason}; "
    if not forced:
        return Refusal(wire.ERROR_REASON_DEMOTED, message + reasons)
    message += f"{_FORCED_ONLY}; {reasons}" if rejected else _FORCED_ONLY
    limit = "a specialist that serves"
    return Refusal(wire.ERROR_REASON_DEMOTED, message, field="force_specialists", limit=limit, value=primary)


def duplicate_request(request_id: str) -> Refusal:
    shown = shorten(request_id)
    message = f"a request with the id {shown} is already in progress"
    limit = "an id that no request in progress has"
    return Refusal(wire.ERROR_REASON_DUPLICATE_REQUEST, message, field="request_id", limit=limit, value=shown)


def too_many_bytes(max_bytes: int) -> Refusal:
    message = f"with this request, the requests in progress would hold more than {max_bytes:,} bytes"
    limit = f"at most {max_bytes:,} bytes in all requests together"
    return Refusal(wire.ERROR_REASON_QUEUE_FULL, message, field="prompt", limit=limit)


def unknown_request(request_id: str) -> Refusal:
    shown, limit = shorten(request_id), "the id of a known request"
    message = f"unknown request id {shown}"
    return Refusal(wire.ERROR_REASON_UNKNOWN_REQUEST, message, field="request_id", limit=limit, value=shown)
