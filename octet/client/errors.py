"""Typed errors of the SDK, and the conversion of a call's status to an error."""

import re
import socket
import time
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import grpc

from octet.addresses import is_local
from octet.client.channel import read_metadata_message
from octet.client.receipts import Receipt, retry_after_seconds
from octet.client.wire_record import enum_label
from octet.v1 import inference_pb2 as wire

ERROR_METADATA_KEY = "octet-error-bin"
RECEIPT_METADATA_KEY = "octet-receipt-bin"


@dataclass(eq=False, repr=False)
class OctetError(Exception):
    """A call failed; the message explains what to do."""

    message: str
    _: KW_ONLY
    code: grpc.StatusCode
    reason: str = ""  # the server's reason, such as "queue_full"; empty if the server sent none
    field: str = ""  # the invalid field
    limit: str = ""  # the limit that was violated
    value: str = ""  # the value that the server received, shortened
    retry_after: float | None = None  # seconds after which a retry may succeed; None if unknown
    ticket: str = ""  # a place that is kept for this request from `retry_after` on, if it is sent with the retry
    receipt: Receipt | None = None  # None if the server sent none
    request_id: str = ""
    partial: str = ""  # the part of the answer that was received before the error

    def __reduce__(self) -> tuple[Any, ...]:
        """Make errors picklable, so that they can cross process boundaries."""
        return partial(type(self), code=self.code), self.args, vars(self).copy()


class InvalidRequest(OctetError):
    """A field is invalid; `field` is its name."""


class NotFound(OctetError):
    """There is no specialist, adapter, request, job, replica or knob with this name or id."""


class Unauthenticated(OctetError):
    """The API key is missing or unknown."""


class Forbidden(OctetError):
    """The API key does not permit this call."""


class NoSpecialist(OctetError):
    """No specialist of the ensemble should answer this; the receipt lists the candidates."""


class Busy(OctetError):
    """There is no capacity at the moment; retry after `retry_after`."""


class Unavailable(OctetError):
    """The server cannot be reached, or no replica is ready to serve the request; a retry may succeed."""


class ReplicaLost(OctetError):
    """The answer was truncated because its replica or the router was lost. `partial` holds the received part."""


class CallerStalled(OctetError):
    """The caller went too long without reading the stream."""


class DeadlineExceeded(OctetError):
    """The timeout has passed."""


class Cancelled(OctetError):
    """The request was cancelled by this caller or by request id, or the client was closed."""


class ServerError(OctetError):
    """The server failed; its log has the details."""


_REASONS_BY_CLASS: dict[type[OctetError], str] = {
    InvalidRequest: (
        "MALFORMED INVALID_FIELD PROMPT_TOO_LONG ADAPTER_REFUSED DUPLICATE_REQUEST CONFLICT NO_TOOLS QUARANTINED"
    ),
    NotFound: "UNKNOWN_ADAPTER UNKNOWN_SPECIALIST UNKNOWN_REQUEST UNKNOWN_NAME UNKNOWN_JOB",
    Busy: "QUEUE_FULL DEADLINE_UNREACHABLE WOULD_DELAY_OTHERS SHED BELOW_FLOOR KEY_LIMIT",
    Unavailable: "DRAINING NOT_READY NO_REPLICA DEMOTED STORE_UNAVAILABLE",
    CallerStalled: "CALLER_STALLED",
    DeadlineExceeded: "DEADLINE",
    ServerError: "ENGINE_FAILED REPLICA_FAILED INTERNAL",
    Cancelled: "CANCELLED",
    NoSpecialist: "NO_SPECIALIST",
    ReplicaLost: "REPLICA_LOST",
    Unauthenticated: "UNAUTHENTICATED",
    Forbidden: "FORBIDDEN",
}
_CLASS_BY_REASON = {
    wire.ErrorReason.Value(f"ERROR_REASON_{reason}"): kind
    for kind, reasons in _REASONS_BY_CLASS.items()
    for reason in reasons.split()
}
_CODES_BY_CLASS: dict[type[OctetError], str] = {
    InvalidRequest: "INVALID_ARGUMENT ALREADY_EXISTS FAILED_PRECONDITION OUT_OF_RANGE UNIMPLEMENTED",
    NotFound: "NOT_FOUND",
    Forbidden: "PERMISSION_DENIED",
    Unauthenticated: "UNAUTHENTICATED",
    Busy: "RESOURCE_EXHAUSTED",
    Unavailable: "UNAVAILABLE CANCELLED",  # without a reason, gRPC cancelled it: the server is stopping or overloaded
    DeadlineExceeded: "DEADLINE_EXCEEDED",
}
_CLASS_BY_CODE = {grpc.StatusCode[code]: kind for kind, codes in _CODES_BY_CLASS.items() for code in codes.split()}
_ADVICE: dict[type[OctetError], str] = {
    NoSpecialist: "force a specialist by name, or see the receipt for the candidates",
    Unauthenticated: "give api_key, or set OCTET_API_KEY",
    Busy: "try again later",
    Unavailable: "try again",
    ReplicaLost: "the part that was received is valid; send the request again for the rest",
    CallerStalled: "read the stream faster, or ask for less",
}
_ADVICE_BY_REASON = {
    wire.ERROR_REASON_DEADLINE_UNREACHABLE: "allow more time, or ask for less",
    wire.ERROR_REASON_BELOW_FLOOR: "use a higher priority, or try again later",
    wire.ERROR_REASON_DEMOTED: "use another specialist",
}
_TOO_LARGE = "message larger than max"
"""gRPC's details for an oversized message, which has the same status as a full queue."""


def error_class(code: grpc.StatusCode, reason: int) -> type[OctetError]:
    """Return the error class of the reason. For a reason that only newer servers know, the status code decides."""
    return _CLASS_BY_REASON.get(reason) or _CLASS_BY_CODE.get(code, ServerError)


def error_from_rpc(error: Any, *, address: str, request_id: str = "", begun: bool = False) -> OctetError:
    """Convert a grpc.RpcError. `begun` means that part of the answer had already arrived."""
    code, metadata, status_text = error.code(), error.trailing_metadata(), error.details() or ""
    details = read_metadata_message(metadata, ERROR_METADATA_KEY, wire.Error)
    receipt = read_metadata_message(metadata, RECEIPT_METADATA_KEY, wire.Receipt)
    sent = wire.Error() if details is None else details
    is_too_large = details is None and _TOO_LARGE in status_text
    kind = InvalidRequest if is_too_large else error_class(code, sent.reason)
    if begun and kind is Unavailable:
        kind = ReplicaLost  # a retry would start the answer over
    retry_after = retry_after_seconds(sent)
    if details is not None:
        message = _with_advice(kind, sent, retry_after)
    elif kind is ReplicaLost:
        message = f"the router at {address} was lost in the middle of the answer; {_ADVICE[ReplicaLost]}"
    else:
        message = _describe_status(kind, code, status_text, address)
    return kind(
        message,
        code=code,
        reason=enum_label(wire.ErrorReason.DESCRIPTOR, sent.reason),
        field=sent.field,
        limit=sent.limit,
        value=sent.value,
        retry_after=retry_after,
        ticket=sent.ticket,
        receipt=None if receipt is None else Receipt.from_wire(receipt),
        request_id=request_id,
    )


def invalid_option(name: str, limit: str, value: str) -> InvalidRequest:
    """Return the error for a value that cannot be sent, and therefore cannot be checked by the server."""
    message, code = f"{name} must be {limit}, got {value}", grpc.StatusCode.INVALID_ARGUMENT
    return InvalidRequest(message, code=code, reason="invalid_field", field=name, limit=limit, value=value)


def cancelled_error(request_id: str, message: str = "the request was cancelled") -> Cancelled:
    return Cancelled(message, code=grpc.StatusCode.CANCELLED, reason="cancelled", request_id=request_id)


def closed_error(request_id: str) -> Cancelled:
    return cancelled_error(request_id, "the client is closed")


def is_unexplained_cancel(error: OctetError) -> bool:
    """Whether this client or gRPC itself cancelled the call, without a reason from a server."""
    return error.code is grpc.StatusCode.CANCELLED and not error.reason


def _with_advice(kind: type[OctetError], sent: wire.Error, retry_after: float | None) -> str:
    advice = _ADVICE_BY_REASON.get(sent.reason) or _ADVICE.get(kind)
    if retry_after is not None:
        advice = f"try again in {retry_after:.1f} s"
    return sent.message if advice is None else f"{sent.message}; {advice}"


def _describe_status(kind: type[OctetError], code: grpc.StatusCode, details: str, address: str) -> str:
    """Describe a call that was ended by gRPC itself or by a proxy, without details from the server."""
    if code is grpc.StatusCode.CANCELLED:
        return f"{address} ended the call without a reason: it is stopping or overloaded; {_ADVICE[Unavailable]}"
    if kind is Unavailable:
        return describe_unreachable(address, details)
    if kind is DeadlineExceeded:
        return f"no answer from {address} within the timeout"
    if kind is InvalidRequest and code == grpc.StatusCode.RESOURCE_EXHAUSTED:
        return f"the request or its answer is too large to be sent: {details}"
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return f"the server at {address} is not a router; to use a single replica: octet generate --replica"
    return f"the call to {address} ended with {code.name}" + (f": {details}" if details else "")


_HOST_PORT = re.compile(r"(?:dns:///|ipv[46]:)?\[?([^\[\]]+?)\]?:([0-9]+)$")
_ADDRESS_PREFIX = re.compile(r"[A-Z_]+: (?:ipv[46]|unix):\S+: ")
_LOOKUP_FAILED = re.compile(r"lookup failed for .*: ([^:\]]+)\]?$")
_CONNECTION_CLOSED = ("Socket closed", "reset by peer")
_PLAINTEXT_SERVER = "WRONG_VERSION_NUMBER"
_BAD_CA_FILE = "create security handshaker"
_HTTP1_SERVER = "http1.x server"
_MAX_DETAILS = 160
_NUM_PROBES = 4
_PROBE_TIMEOUT_S = 0.5
_PROBE_INTERVAL_S = 0.05


def describe_unreachable(address: str, details: str, start: str = "start it with: octet serve") -> str:
    """Describe in one sentence why a server cannot be reached. `start` tells how to start a server on this machine."""
    is_here = is_local(address)
    if "Connection refused" in details and is_here:
        return f"nothing answers at {address}; {start}"
    if _PLAINTEXT_SERVER in details:
        return f"no TLS connection to {address}: the server there does not use TLS; omit --tls-ca, or start it with TLS"
    if _BAD_CA_FILE in details:
        return f"no TLS connection to {address}: --tls-ca must be a PEM file with certificates, and this one has none"
    if _HTTP1_SERVER in details:
        return f"no gRPC server answers at {address}: an HTTP server listens there; gRPC has its own port"
    if "handshake failed" in details or "erification" in details:
        return f"no TLS connection to {address}: {_shorten_details(details)}; did --tls-ca sign its certificate?"
    if any(text in details for text in _CONNECTION_CLOSED) and is_here and not _is_listening(address):
        return f"nothing listens at {address} any more: the server stopped during the call; {start}"
    if "Socket closed" in details:
        return f"{address} closed the connection: it has stopped or requires TLS; if it uses TLS, name its CA: --tls-ca"
    return f"nothing answers at {address}: {_shorten_details(details)}" if details else f"nothing answers at {address}"


def _is_listening(address: str) -> bool:
    """Whether a server listens; True if unknown. gRPC itself reports a stopped server like one that requires TLS."""
    found = _HOST_PORT.match(address)
    if found is None:
        return True
    try:
        for _ in range(_NUM_PROBES):  # a process being killed closes its connections before its listening socket
            socket.create_connection((found[1], int(found[2])), _PROBE_TIMEOUT_S).close()
            time.sleep(_PROBE_INTERVAL_S)
    except ConnectionRefusedError:
        return False
    except (OSError, OverflowError):
        return True  # unknown
    return True


def _shorten_details(details: str) -> str:
    last = _ADDRESS_PREFIX.sub("", details.rpartition("last error: ")[2])
    found = _LOOKUP_FAILED.search(last)
    if found is not None:
        return f"the name cannot be resolved ({found[1].strip().lower()})"
    return last if len(last) <= _MAX_DETAILS else last[: _MAX_DETAILS - 3] + "..."
