"""HTTP errors: status, message, and envelope in each dialect."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from math import ceil
from typing import Annotated, Any, Literal

import msgspec
from grpc import StatusCode
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response
from starlette.types import Scope

from octet.rpc.refusal import STATUS_BY_REASON, Refusal
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire
from router.receipts import RECEIPT_METADATA_KEY

INVALID = "invalid_request_error"
AUTHENTICATION = "authentication_error"
PERMISSION = "permission_error"
RATE_LIMIT = "rate_limit_error"
SERVER = "server_error"
TIMEOUT = "timeout_error"
CONTEXT_LENGTH = "context_length_exceeded"
TICKET_HEADER = "octet-ticket"
WAIT_HEADER = "octet-wait-ms"
_TOO_LONG = "prompt is too long"
_RETRIED_STATUSES = (408, 409, 429)
_ANTHROPIC_PATH = "/v1/messages"
_MODELS_PATH = "/v1/models"
_STATUS: Mapping[StatusCode, int] = {
    **{StatusCode.INVALID_ARGUMENT: 400, StatusCode.UNAUTHENTICATED: 401, StatusCode.PERMISSION_DENIED: 403},
    **{StatusCode.NOT_FOUND: 404, StatusCode.ALREADY_EXISTS: 409, StatusCode.ABORTED: 409},
    **{StatusCode.FAILED_PRECONDITION: 422, StatusCode.RESOURCE_EXHAUSTED: 429, StatusCode.CANCELLED: 499},
    **{StatusCode.INTERNAL: 500, StatusCode.UNAVAILABLE: 503, StatusCode.DEADLINE_EXCEEDED: 504},
}
_KINDS = {401: AUTHENTICATION, 403: PERMISSION, 429: RATE_LIMIT, 500: SERVER, 503: SERVER, 504: TIMEOUT}
_ANTHROPIC_KINDS = {
    **{401: AUTHENTICATION, 403: PERMISSION, 404: "not_found_error"},
    **{429: RATE_LIMIT, 499: "api_error", 504: TIMEOUT},
}
_CODES: Mapping[int, str] = {  # OpenAI's code where OpenAI has one; every other reason keeps Octet's name
    error_pb2.ERROR_REASON_UNKNOWN_SPECIALIST: "model_not_found",
    error_pb2.ERROR_REASON_UNKNOWN_ADAPTER: "model_not_found",
    error_pb2.ERROR_REASON_PROMPT_TOO_LONG: CONTEXT_LENGTH,
    error_pb2.ERROR_REASON_UNAUTHENTICATED: "invalid_api_key",
    error_pb2.ERROR_REASON_KEY_LIMIT: "rate_limit_exceeded",
    error_pb2.ERROR_REASON_NO_TOOLS: "unsupported_parameter",
}
_Kind = Literal[
    "invalid_request_error", "authentication_error", "permission_error", "rate_limit_error", "timeout_error"
]


class PartialAnswer(Struct):
    index: Annotated[int, Meta(ge=0)]
    text: str


class ErrorBody(Struct, forbid_unknown_fields=True):
    """An error. `limit` states which values are accepted; `partial` is the text of each choice up to the error;
    `ticket` is the value of the header octet-ticket."""

    message: str
    type: Literal[_Kind, "server_error"]
    param: str | None
    code: str | None
    limit: str | UnsetType = UNSET
    partial: list[PartialAnswer] | UnsetType = UNSET
    ticket: str | UnsetType = UNSET


class ErrorEnvelope(Struct):
    error: ErrorBody


class AnthropicErrorDetails(Struct, forbid_unknown_fields=True):
    error_code: str | None
    param: str | None
    ticket: str | UnsetType = UNSET


class AnthropicAnswerText(Struct, tag="text", forbid_unknown_fields=True):
    text: str


class AnthropicErrorBody(Struct, forbid_unknown_fields=True):
    type: Literal[_Kind, "not_found_error", "api_error"]
    message: str
    details: AnthropicErrorDetails
    partial: list[AnthropicAnswerText] | UnsetType = UNSET


class AnthropicErrorEnvelope(Struct, tag="error", forbid_unknown_fields=True):
    error: AnthropicErrorBody
    request_id: str


@dataclass(eq=False)
class ApiError(Exception):
    status: int
    message: str
    _: KW_ONLY
    kind: str = INVALID
    param: str | None = None
    code: str | None = None
    limit: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    partial: Sequence[PartialAnswer] = ()
    is_body_pending: bool = False  # the caller is still sending a body that the router does not read
    is_permanent: bool | None = None  # whether a retry cannot succeed; None: as the status says
    value: str = ""  # what the caller sent where `limit` applies

    def __str__(self) -> str:
        return self.message

    def body(self) -> ErrorBody:
        kind: Any = self.kind
        limit, partial, ticket = self.limit or UNSET, list(self.partial) or UNSET, self.ticket or UNSET
        return ErrorBody(self.message, kind, self.param, self.code, limit, partial, ticket)

    @property
    def ticket(self) -> str:
        return self.headers.get(TICKET_HEADER, "")

    def response_headers(self) -> dict[str, str]:
        """Return the headers. The SDKs of OpenAI and Anthropic retry certain statuses unless `x-should-retry` forbids
        it."""
        is_permanent = self.status < 500 and self.status not in _RETRIED_STATUSES
        if self.is_permanent is not None:
            is_permanent = self.is_permanent
        return {**self.headers, "x-should-retry": "false"} if is_permanent else dict(self.headers)

    def envelope(self) -> dict[str, ErrorBody]:
        return {"error": self.body()}

    def anthropic_envelope(self, request_id: str) -> AnthropicErrorEnvelope:
        kind: Any = _ANTHROPIC_KINDS.get(self.status) or ("api_error" if self.status >= 500 else INVALID)
        details = AnthropicErrorDetails(self.code, self.param, self.ticket or UNSET)
        message = self.message
        if self.code == CONTEXT_LENGTH:  # Anthropic's own words, by which its clients recognise the error
            most = (self.limit or "").removeprefix("at most ").removesuffix(" tokens")
            message = f"prompt is too long: {self.value} > {most} maximum" if self.value else f"{_TOO_LONG}: {message}"
        partial = [AnthropicAnswerText(each.text) for each in self.partial]
        return AnthropicErrorEnvelope(AnthropicErrorBody(kind, message, details, partial or UNSET), request_id)


def invalid_field(param: str, limit: str, got: str) -> ApiError:
    return ApiError(400, f"{param} must be {limit}, got {got}", param=param, code="invalid_field", limit=limit)


def missing_field(param: str) -> ApiError:
    return ApiError(400, f"{param} is missing", param=param, code="missing_field")


def unknown_field(param: str, known: Sequence[str]) -> ApiError:
    listed = f"; known fields are {', '.join(known)}" if known else ""
    return ApiError(400, f"{param} is not a field of this request{listed}", param=param, code="unknown_field")


def unsupported_field(param: str, why: str) -> ApiError:
    """Return the error for a field of the vendor's API that no specialist supports."""
    return ApiError(400, f"{param} is not supported: {why}", param=param, code="unsupported_parameter")


def unknown_model_error(model: str) -> ApiError:
    message = f"the model {model!r} does not exist; GET /v1/models lists all models"
    return ApiError(404, message, param="model", code="model_not_found")


def unknown_path_error(path: str) -> ApiError:
    return ApiError(404, f"there is nothing at {path[:100]}", code="not_found")


def refusal_to_error(refusal: Refusal, names: Mapping[str, str]) -> ApiError:
    """Convert a refusal. `names` maps field names in refusals to the names in the caller's dialect."""
    error = refusal.error
    status = _STATUS.get(refusal.code, 500)
    param = names.get(error.field, error.field) or None
    message = str(refusal)
    if param is not None and message.startswith(f"{error.field} "):
        message = param + message.removeprefix(error.field)
    kind, code, headers = _KINDS.get(status, INVALID), error_code(error.reason), _error_headers(refusal, status)
    return ApiError(
        status,
        message,
        kind=kind,
        param=param,
        code=code,
        limit=error.limit or None,
        headers=headers,
        is_permanent=refusal.is_permanent,
        value=error.value if error.limit.startswith("at most ") else "",
    )


@contextmanager
def rename_fields(names: Mapping[str, str]) -> Iterator[None]:
    try:
        yield
    except Refusal as refusal:
        raise refusal_to_error(refusal, names) from None


def error_kind(reason: int) -> str:
    return _KINDS.get(_STATUS[STATUS_BY_REASON[reason]], INVALID)


def error_code(reason: int) -> str:
    name: str = error_pb2.ErrorReason.Name(reason)
    return _CODES.get(reason) or name.removeprefix("ERROR_REASON_").lower()


def _error_headers(refusal: Refusal, status: int) -> dict[str, str]:
    headers: dict[str, str] = {}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if refusal.error.HasField("retry_after_ms"):
        after = refusal.error.retry_after_ms
        headers |= {"retry-after": str(ceil(after / 1000)), "retry-after-ms": str(after)}
    if refusal.error.ticket:
        headers[TICKET_HEADER] = refusal.error.ticket
    receipt = wire.Receipt.FromString(dict(refusal.extra_metadata).get(RECEIPT_METADATA_KEY, b""))
    specialist = receipt.specialist or receipt.decision.primary
    if specialist:
        headers["x-octet-specialist"] = specialist
    return headers


class JsonResponse(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


def is_anthropic_call(scope: Scope) -> bool:
    """Whether the caller expects Anthropic's error envelope: by the path, even if no route has it, or by the header for
    the paths of both dialects."""
    path = scope["path"]
    if path == _ANTHROPIC_PATH or path.startswith(f"{_ANTHROPIC_PATH}/"):
        return True
    is_shared = path == _MODELS_PATH or path.startswith(f"{_MODELS_PATH}/")
    return is_shared and any(name == b"anthropic-version" for name, _ in scope["headers"])
