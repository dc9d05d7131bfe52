"""Refusals: a gRPC status, a human-readable message, and machine-readable details."""

from collections.abc import Mapping

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from grpc import StatusCode

from octet.limits import shorten
from octet.v1 import error_pb2 as wire

ERROR_METADATA_KEY = "octet-error-bin"
STATUS_DETAILS_KEY = "grpc-status-details-bin"
PUSHBACK_KEY = "grpc-retry-pushback-ms"  # gRPC clients with a retry policy obey it; a negative number forbids retries
_RETRY_INFO_TYPE = "type.googleapis.com/google.rpc.RetryInfo"
_MAX_MESSAGE = 1024
_CONTEXT_IS = "This model's maximum context length is"  # LiteLLM and pydantic-ai look for these words
_SHORTEN_PROMPT = "Please reduce the length of the messages."
_MAX_DETAIL = 200  # text from the caller must not make the trailing metadata so large that gRPC drops it
_REASONS_BY_CODE = {
    StatusCode.INVALID_ARGUMENT: "MALFORMED INVALID_FIELD PROMPT_TOO_LONG NO_TOOLS",
    StatusCode.NOT_FOUND: "UNKNOWN_ADAPTER UNKNOWN_SPECIALIST UNKNOWN_REQUEST UNKNOWN_NAME UNKNOWN_JOB",
    StatusCode.FAILED_PRECONDITION: "ADAPTER_REFUSED NO_SPECIALIST QUARANTINED CONFLICT",
    StatusCode.ALREADY_EXISTS: "DUPLICATE_REQUEST",
    StatusCode.RESOURCE_EXHAUSTED: (
        "QUEUE_FULL CALLER_STALLED DEADLINE_UNREACHABLE WOULD_DELAY_OTHERS SHED BELOW_FLOOR KEY_LIMIT"
    ),
    StatusCode.UNAVAILABLE: "NOT_READY DRAINING NO_REPLICA REPLICA_LOST DEMOTED STORE_UNAVAILABLE",
    StatusCode.DEADLINE_EXCEEDED: "DEADLINE",
    StatusCode.CANCELLED: "CANCELLED",
    StatusCode.UNAUTHENTICATED: "UNAUTHENTICATED",
    StatusCode.PERMISSION_DENIED: "FORBIDDEN",
    StatusCode.INTERNAL: "ENGINE_FAILED REPLICA_FAILED INTERNAL UNSPECIFIED",
}
STATUS_BY_REASON: Mapping[int, grpc.StatusCode] = {
    wire.ErrorReason.Value(f"ERROR_REASON_{reason}"): code
    for code, reasons in _REASONS_BY_CODE.items()
    for reason in reasons.split()
}

_PERMANENT_CODES = frozenset(
    getattr(StatusCode, name)
    for name in (
        *("INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "ALREADY_EXISTS", "CANCELLED", "DEADLINE_EXCEEDED"),
        *("UNAUTHENTICATED", "PERMISSION_DENIED"),
    )
)


class Refusal(Exception):
    """An error that ends a call with a status. It never contains internals such as paths, stack traces or addresses."""

    def __init__(
        self,
        reason: wire.ErrorReason,
        message: str,
        *,
        code: grpc.StatusCode | None = None,
        field: str = "",
        limit: str = "",
        value: str = "",
        retry_after: float | None = None,
    ) -> None:
        """The default of `code` is the status code for the reason."""
        super().__init__(message[:_MAX_MESSAGE])
        self.code = STATUS_BY_REASON[reason] if code is None else code
        self.error = wire.Error(
            reason=reason,
            field=field,
            limit=limit[:_MAX_DETAIL],
            value=value[:_MAX_DETAIL],
            message=message[:_MAX_MESSAGE],
            retry_after_ms=None if retry_after is None else max(1, round(retry_after * 1000)),
        )
        self.extra_metadata: list[tuple[str, bytes]] = []

    @property
    def is_permanent(self) -> bool:
        """Whether the same request would be refused again, however often it is repeated within the next minutes."""
        is_unreachable = self.error.reason == wire.ERROR_REASON_DEADLINE_UNREACHABLE
        if is_unreachable and not self.error.HasField("retry_after_ms"):  # it would be late even on an idle replica
            return True
        return self.code in _PERMANENT_CODES or self.error.reason == wire.ERROR_REASON_BELOW_FLOOR

    def metadata(self) -> tuple[tuple[str, bytes | str], ...]:
        return ((ERROR_METADATA_KEY, self.error.SerializeToString()), *self._retry_info(), *self.extra_metadata)

    def _retry_info(self) -> tuple[tuple[str, bytes | str], ...]:
        """State in gRPC's own terms whether and when to retry, for clients that do not know Octet's errors."""
        if self.is_permanent:
            return ((PUSHBACK_KEY, "-1"),)
        if not self.error.HasField("retry_after_ms"):
            return ()
        delay = Duration()
        delay.FromMilliseconds(self.error.retry_after_ms)
        info = Any(type_url=_RETRY_INFO_TYPE, value=wire.RetryInfo(retry_delay=delay).SerializeToString())
        # Clients require code and message to equal those of the call.
        details = wire.StatusDetails(code=self.code.value[0], message=str(self), details=[info])
        after = str(self.error.retry_after_ms)
        return ((STATUS_DETAILS_KEY, details.SerializeToString()), (PUSHBACK_KEY, after))


def invalid_field(field: str, limit: str, value: str) -> Refusal:
    message = f"{field} must be {limit}, got {value}"
    return Refusal(wire.ERROR_REASON_INVALID_FIELD, message, field=field, limit=limit, value=value)


def malformed_request(message_name: str, field: str, problem: str) -> Refusal:
    limit = f"a serialised octet.v1.{message_name}"
    return Refusal(wire.ERROR_REASON_MALFORMED, f"{field}: {problem}", field=field, limit=limit)


def prompt_too_long(num_tokens: int, most: int) -> Refusal:
    fits = f"{_CONTEXT_IS} {most + 1} tokens, of which the prompt may take {most}"
    message = f"{fits}. However, the prompt has {num_tokens} tokens. {_SHORTEN_PROMPT}"
    limit, value = f"at most {most} tokens", f"{num_tokens} tokens"
    return Refusal(wire.ERROR_REASON_PROMPT_TOO_LONG, message, field="prompt", limit=limit, value=value)


def prompt_too_large(field: str, most: int, got: str) -> Refusal:
    """Refuse a prompt that has too many bytes to be tokenised. `got` states its size."""
    limit = f"at most {most:,} bytes"
    part = "request" if field == "request" else "prompt"
    message = f"{_CONTEXT_IS} exceeded: the {part} has {got}; a prompt may have {limit}. {_SHORTEN_PROMPT}"
    return Refusal(wire.ERROR_REASON_PROMPT_TOO_LONG, message, field=field, limit=limit, value=got)


def tools_unsupported(reason: str) -> Refusal:
    message = f"this specialist's model does not support tools: {reason}"
    limit = "unset, unless the specialist's model supports tool calls"
    return Refusal(wire.ERROR_REASON_NO_TOOLS, message, field="tools", limit=limit)


def unknown_adapter(name: str) -> Refusal:
    message, limit = f"no adapter named {shorten(name)} is loaded", "names of loaded adapters"
    return Refusal(wire.ERROR_REASON_UNKNOWN_ADAPTER, message, field="adapters", limit=limit, value=shorten(name))


def adapter_refused(field: str, reason: str) -> Refusal:
    message = f"the adapter was not loaded: {field}: {reason}"
    return Refusal(wire.ERROR_REASON_ADAPTER_REFUSED, message, field=field, limit=reason)


def queue_full(state: str, most: int, retry_after: float | None) -> Refusal:
    """`state` says what the other requests are doing, such as "waiting"."""
    message, limit = f"{most} requests are already {state}", f"at most {most} requests"
    return Refusal(wire.ERROR_REASON_QUEUE_FULL, message, field=state, limit=limit, retry_after=retry_after)


def deadline_unreachable(field: str, limit: str, arithmetic: str, retry_after: float | None) -> Refusal:
    message = f"the request would miss its deadline: {arithmetic}"
    return Refusal(wire.ERROR_REASON_DEADLINE_UNREACHABLE, message, field=field, limit=limit, retry_after=retry_after)


def would_delay_others(limit: str, arithmetic: str, retry_after: float | None) -> Refusal:
    message = f"the request would make admitted requests late: {arithmetic}"
    reason = wire.ERROR_REASON_WOULD_DELAY_OTHERS
    return Refusal(reason, message, field="priority", limit=limit, retry_after=retry_after)


def request_shed(retry_after: float | None) -> Refusal:
    why = "in favour of one with a higher priority or because it would have missed its deadline"
    return Refusal(wire.ERROR_REASON_SHED, f"the request was admitted and then shed, {why}", retry_after=retry_after)


def not_ready() -> Refusal:
    message = "this replica is warming up; its health status reports when it is ready"
    return Refusal(wire.ERROR_REASON_NOT_READY, message)


def draining(server: str = "replica") -> Refusal:
    return Refusal(wire.ERROR_REASON_DRAINING, f"this {server} is draining and accepts no new requests")


def caller_stalled(reason: str) -> Refusal:
    return Refusal(wire.ERROR_REASON_CALLER_STALLED, f"the caller did not read its stream: {reason}")


def caller_idle(seconds: float) -> Refusal:
    return caller_stalled(f"nothing was read for {seconds:g} s")


def caller_overflowed(most: int) -> Refusal:
    return caller_stalled(f"more than {most:,} bytes were unread")


def cancelled() -> Refusal:
    return Refusal(wire.ERROR_REASON_CANCELLED, "the request was cancelled")


def deadline_exceeded() -> Refusal:
    return Refusal(wire.ERROR_REASON_DEADLINE, "the deadline has passed")


def first_token_late() -> Refusal:
    message, limit = "the first token was not generated in time", "a first token within that time"
    return Refusal(wire.ERROR_REASON_DEADLINE, message, field="first_token_timeout_ms", limit=limit)


def engine_failed(request_id: str) -> Refusal:
    message = f"the engine failed on this request; see {request_id} in the replica's log"
    return Refusal(wire.ERROR_REASON_ENGINE_FAILED, message)


def internal_error(call: str) -> Refusal:
    return Refusal(wire.ERROR_REASON_INTERNAL, f"{call} failed; see the server's log")


def replica_failed() -> Refusal:
    return Refusal(wire.ERROR_REASON_REPLICA_FAILED, "this replica has failed and must be restarted")
