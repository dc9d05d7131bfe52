"""From what gRPC raises to what a caller can act on."""

from typing import Any

import grpc

from octet.sdk.channel import found_in
from octet.sdk.classify import error_class
from octet.sdk.errors import (
    Busy,
    CallerStalled,
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    NoSpecialist,
    OctetError,
    ReplicaLost,
    Unauthenticated,
    Unavailable,
)
from octet.sdk.receipt import Receipt, word
from octet.sdk.unreachable import unreachable
from octet.v1 import inference_pb2 as wire

ERROR_KEY = "octet-error-bin"
RECEIPT_KEY = "octet-receipt-bin"
_TOO_LARGE = "message larger than max"
"""gRPC's own words for a message that nobody reads, under the same status as a queue that is full."""
_ADVICE: dict[type[OctetError], str] = {
    NoSpecialist: "force one by name, or see the receipt for who was considered",
    Unauthenticated: "give api_key, or set OCTET_API_KEY",
    Busy: "try again later",
    Unavailable: "try again",
    ReplicaLost: "what came before stands; ask again for the rest",
    CallerStalled: "read the stream faster, or ask for less",
}


def typed(error: Any, *, address: str, request_id: str = "", begun: bool = False) -> OctetError:
    """`error` is a grpc.RpcError that a call ended with; `begun`: a part of the answer had come."""
    code, metadata = error.code(), error.trailing_metadata()
    details = found_in(metadata, ERROR_KEY, wire.Error)
    receipt = found_in(metadata, RECEIPT_KEY, wire.Receipt)
    said = wire.Error() if details is None else details
    too_large = details is None and _TOO_LARGE in (error.details() or "")
    kind = InvalidRequest if too_large else error_class(code, said.reason)
    if begun and kind is Unavailable:
        kind = ReplicaLost  # asked again, it would begin once more
    after = said.retry_after_ms / 1000 if said.HasField("retry_after_ms") else None
    if details is not None:
        words = _advised(kind, said, after)
    elif kind is ReplicaLost:
        words = f"the router at {address} was lost in the middle of the answer; {_ADVICE[ReplicaLost]}"
    else:
        words = _unsaid(kind, code, error.details() or "", address)
    return kind(
        words,
        code=code,
        reason=word(wire.ErrorReason, said.reason, "ERROR_REASON_"),
        field=said.field,
        limit=said.limit,
        value=said.value,
        retry_after=after,
        receipt=None if receipt is None else Receipt.from_wire(receipt),
        request_id=request_id,
    )


def invalid(field: str, limit: str, value: str) -> InvalidRequest:
    """What no message can carry, and the server therefore never sees."""
    return InvalidRequest(
        f"{field} must be {limit}, got {value}",
        code=grpc.StatusCode.INVALID_ARGUMENT,
        reason="invalid_field",
        field=field,
        limit=limit,
        value=value,
    )


def cancelled(request_id: str, why: str = "the request was cancelled") -> Cancelled:
    return Cancelled(why, code=grpc.StatusCode.CANCELLED, reason="cancelled", request_id=request_id)


def closed(request_id: str) -> Cancelled:
    return cancelled(request_id, "the client is closed")


def is_unsaid_cancel(problem: OctetError) -> bool:
    """Cancelled here, or by gRPC itself: no server gave a reason."""
    return problem.code is grpc.StatusCode.CANCELLED and not problem.reason


_ADVICE_BY_REASON = {
    wire.ERROR_REASON_DEADLINE_UNREACHABLE: "give it more time, or ask for less",
    wire.ERROR_REASON_BELOW_FLOOR: "ask with a higher priority, or later",
    wire.ERROR_REASON_DEMOTED: "ask somebody else",
}


def _advised(kind: type[OctetError], said: wire.Error, after: float | None) -> str:
    usual = _ADVICE_BY_REASON.get(said.reason) or _ADVICE.get(kind)
    advice = usual if after is None else f"try again in {after:.1f} s"
    return said.message if advice is None else f"{said.message}; {advice}"


def _unsaid(kind: type[OctetError], code: grpc.StatusCode, details: str, address: str) -> str:
    """The server never got to say anything: gRPC itself, or something in between, ended the call."""
    if code is grpc.StatusCode.CANCELLED:
        return f"{address} ended the call without a word: it stops, or too many wait; {_ADVICE[Unavailable]}"
    if kind is Unavailable:
        return unreachable(address, details)
    if kind is DeadlineExceeded:
        return f"no answer from {address} within the time given"
    if kind is InvalidRequest and code == grpc.StatusCode.RESOURCE_EXHAUSTED:
        return f"the request, or its answer, is too large to be sent: {details}"
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return f"what answers at {address} is no router; one replica alone is asked with: octet generate --replica"
    return f"the call to {address} ended with {code.name}" + (f": {details}" if details else "")
