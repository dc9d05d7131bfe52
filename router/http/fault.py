"""Why a call over HTTP was not served: a status, and OpenAI's envelope around the reason."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import grpc

from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire
from router.receipts.receipt import METADATA_KEY

INVALID = "invalid_request_error"
AUTHENTICATION = "authentication_error"
PERMISSION = "permission_error"
RATE_LIMIT = "rate_limit_error"
SERVER = "server_error"
TIMEOUT = "timeout_error"
_STATUS: Mapping[grpc.StatusCode, int] = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.FAILED_PRECONDITION: 422,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.CANCELLED: 499,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
_KINDS: Mapping[int, str] = {
    401: AUTHENTICATION,
    403: PERMISSION,
    429: RATE_LIMIT,
    500: SERVER,
    503: SERVER,
    504: TIMEOUT,
}
_CODES: Mapping[int, str] = {
    error_pb2.ERROR_REASON_UNKNOWN_SPECIALIST: "model_not_found",
    error_pb2.ERROR_REASON_UNKNOWN_ADAPTER: "model_not_found",
    error_pb2.ERROR_REASON_PROMPT_TOO_LONG: "context_length_exceeded",
    error_pb2.ERROR_REASON_UNAUTHENTICATED: "invalid_api_key",
    error_pb2.ERROR_REASON_KEY_LIMIT: "rate_limit_exceeded",
    error_pb2.ERROR_REASON_NO_TOOLS: "unsupported_parameter",
}
"""OpenAI's own words, where it has some; all others are Octet's."""


class Fault(Exception):
    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        limit: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`limit` is what would have been right."""
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code
        self.limit = limit
        self.headers = dict(headers or {})
        self.partial: Sequence[Mapping[str, Any]] = ()
        """What had been said, by choice, when it went wrong."""
        self.body_is_coming = False
        """The caller is still sending what nobody reads."""

    def envelope(self) -> dict[str, Any]:
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        limit = {"limit": self.limit} if self.limit else {}
        partial = {"partial": list(self.partial)} if self.partial else {}
        return {"error": {**error, **limit, **partial}}


def wrong(param: str, limit: str, got: str) -> Fault:
    """The field is not what it must be."""
    return Fault(400, f"{param} must be {limit}, got {got}", param=param, code="invalid_field", limit=limit)


def unsupported(param: str, why: str) -> Fault:
    """OpenAI knows the field; nobody here can do what it asks for."""
    return Fault(400, f"{param} is not supported: {why}", param=param, code="unsupported_parameter")


def unknown_model(model: str) -> Fault:
    return Fault(
        404, f"the model {model!r} does not exist; GET /v1/models lists them", param="model", code="model_not_found"
    )


def fault_of(refusal: Refusal, names: Mapping[str, str]) -> Fault:
    """`names` says what the fields of an InferRequest are called in this dialect."""
    error = refusal.error
    status = _STATUS.get(refusal.code, 500)
    if status == 400 and error.field == "request":
        status = 413
    param = names.get(error.field, error.field) or None
    message = str(refusal)
    if param is not None and message.startswith(f"{error.field} "):
        message = param + message.removeprefix(error.field)
    return Fault(
        status,
        message,
        kind=_KINDS.get(status, INVALID),
        param=param,
        code=code_of(error.reason),
        limit=error.limit or None,
        headers=_challenge(status) | _retry(refusal, status) | _specialist(refusal),
    )


def _challenge(status: int) -> dict[str, str]:
    return {"www-authenticate": "Bearer"} if status == 401 else {}


def _retry(refusal: Refusal, status: int) -> dict[str, str]:
    """After a deadline the same request would only miss the next one."""
    headers = {"x-should-retry": "false"} if status == 504 else {}
    if not refusal.error.HasField("retry_after_ms"):
        return headers
    after = refusal.error.retry_after_ms
    return headers | {"retry-after": str(ceil(after / 1000)), "retry-after-ms": str(after)}


def _specialist(refusal: Refusal) -> dict[str, str]:
    """Who was asked, as far as the receipt knows."""
    raw = dict(refusal.beside).get(METADATA_KEY)
    receipt = wire.Receipt() if raw is None else wire.Receipt.FromString(raw)
    name = receipt.specialist or receipt.decision.primary
    return {"x-octet-specialist": name} if name else {}


def code_of(reason: int) -> str:
    return _CODES.get(reason) or _word(reason)


def _word(reason: int) -> str:
    name: str = error_pb2.ErrorReason.Name(reason)
    return name.removeprefix("ERROR_REASON_").lower()
