"""Why a call was not served: a status for machines, a sentence for people, and the details beside it."""

import grpc

from octet.rpc import retry_info
from octet.rpc.retry_info import status_details
from octet.v1 import error_pb2 as wire

METADATA_KEY = "octet-error-bin"
_SHOWN = 60
_MESSAGE = 1024
_DETAIL = 200
"""A caller's own text never makes the trailing metadata so large that gRPC drops them."""


class Refusal(Exception):
    """Ends a call with a status. Carries nothing of the inside: no paths, no traces, no addresses."""

    def __init__(
        self,
        code: grpc.StatusCode,
        reason: wire.ErrorReason,
        message: str,
        *,
        field: str = "",
        limit: str = "",
        value: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message[:_MESSAGE])
        self.code = code
        self.error = wire.Error(
            reason=reason,
            field=field,
            limit=limit[:_DETAIL],
            value=value[:_DETAIL],
            message=message[:_MESSAGE],
            retry_after_ms=None if retry_after is None else max(1, round(retry_after * 1000)),
        )
        self.beside: list[tuple[str, bytes]] = []
        """More for the trailing metadata."""

    def metadata(self) -> tuple[tuple[str, bytes], ...]:
        return ((METADATA_KEY, self.error.SerializeToString()), *self._retry_info(), *self.beside)

    def _retry_info(self) -> tuple[tuple[str, bytes], ...]:
        if not self.error.HasField("retry_after_ms"):
            return ()
        return ((retry_info.METADATA_KEY, status_details(self.code, str(self), self.error.retry_after_ms)),)


def shorten(value: object) -> str:
    """A value as it is shown to whoever sent it."""
    shown = value[:_SHOWN] if isinstance(value, str) else value
    text = repr(shown)
    return text if len(text) <= _SHOWN and shown == value else text[: _SHOWN - 3] + "..."


def invalid(field: str, limit: str, value: str) -> Refusal:
    """The field is not what it must be."""
    return Refusal(
        grpc.StatusCode.INVALID_ARGUMENT,
        wire.ERROR_REASON_INVALID_FIELD,
        f"{field} must be {limit}, got {value}",
        field=field,
        limit=limit,
        value=value,
    )


def prompt_too_long(num_tokens: int, most: int) -> Refusal:
    return Refusal(
        grpc.StatusCode.INVALID_ARGUMENT,
        wire.ERROR_REASON_PROMPT_TOO_LONG,
        f"the prompt is {num_tokens} tokens long; at most {most} and an answer fit here",
        field="prompt",
        limit=f"at most {most} tokens",
        value=f"{num_tokens} tokens",
    )


def no_tools(why: str) -> Refusal:
    return Refusal(
        grpc.StatusCode.INVALID_ARGUMENT,
        wire.ERROR_REASON_NO_TOOLS,
        f"tools are not for this specialist's model: {why}",
        field="tools",
        limit="unset, unless the specialist's model was taught to call them",
    )


def malformed(kind: str, field: str, why: str) -> Refusal:
    return Refusal(
        grpc.StatusCode.INVALID_ARGUMENT,
        wire.ERROR_REASON_MALFORMED,
        f"{field}: {why}",
        field=field,
        limit=f"a serialised octet.v1.{kind}",
    )


def unknown_adapter(name: str) -> Refusal:
    return Refusal(
        grpc.StatusCode.NOT_FOUND,
        wire.ERROR_REASON_UNKNOWN_ADAPTER,
        f"no adapter is loaded under the name {shorten(name)}",
        field="adapters",
        limit="names of loaded adapters",
        value=shorten(name),
    )


def adapter_refused(field: str, why: str) -> Refusal:
    return Refusal(
        grpc.StatusCode.FAILED_PRECONDITION,
        wire.ERROR_REASON_ADAPTER_REFUSED,
        f"the adapter was not loaded: {field}: {why}",
        field=field,
        limit=why,
    )


def queue_full(what: str, most: int, retry_after: float | None) -> Refusal:
    return Refusal(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        wire.ERROR_REASON_QUEUE_FULL,
        f"{most} requests are {what} already",
        field=what,
        limit=f"at most {most} requests",
        retry_after=retry_after,
    )


def deadline_unreachable(field: str, limit: str, arithmetic: str, retry_after: float | None) -> Refusal:
    return Refusal(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        wire.ERROR_REASON_DEADLINE_UNREACHABLE,
        f"it could not be answered in time: {arithmetic}",
        field=field,
        limit=limit,
        retry_after=retry_after,
    )


def would_delay_others(limit: str, arithmetic: str, retry_after: float | None) -> Refusal:
    return Refusal(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        wire.ERROR_REASON_WOULD_DELAY_OTHERS,
        f"it would delay others: {arithmetic}",
        field="priority",
        limit=limit,
        retry_after=retry_after,
    )


def shed(retry_after: float | None) -> Refusal:
    return Refusal(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        wire.ERROR_REASON_SHED,
        "it had been let in and had to give way: to something more important, or because its time would not suffice",
        retry_after=retry_after,
    )


def not_ready() -> Refusal:
    return Refusal(
        grpc.StatusCode.UNAVAILABLE,
        wire.ERROR_REASON_NOT_READY,
        "this replica is warming up; health tells when it is done",
    )


def draining(who: str = "replica") -> Refusal:
    return Refusal(
        grpc.StatusCode.UNAVAILABLE, wire.ERROR_REASON_DRAINING, f"this {who} is draining and takes nothing new"
    )


def caller_stalled(why: str) -> Refusal:
    return Refusal(
        grpc.StatusCode.RESOURCE_EXHAUSTED, wire.ERROR_REASON_CALLER_STALLED, f"the stream was not read: {why}"
    )


def cancelled() -> Refusal:
    return Refusal(grpc.StatusCode.CANCELLED, wire.ERROR_REASON_CANCELLED, "the request was cancelled")


def past_deadline() -> Refusal:
    return Refusal(grpc.StatusCode.DEADLINE_EXCEEDED, wire.ERROR_REASON_DEADLINE, "the deadline has passed")


def past_first_token() -> Refusal:
    return Refusal(
        grpc.StatusCode.DEADLINE_EXCEEDED,
        wire.ERROR_REASON_DEADLINE,
        "the first token did not come in time",
        field="first_token_timeout_ms",
        limit="a first token within that time",
    )


def engine_failed(request_id: str) -> Refusal:
    message = f"the engine failed on this request; the replica's log says more under {request_id}"
    return Refusal(grpc.StatusCode.INTERNAL, wire.ERROR_REASON_ENGINE_FAILED, message)


def failed_inside(what: str) -> Refusal:
    """Of the server itself, and nobody else's."""
    return Refusal(grpc.StatusCode.INTERNAL, wire.ERROR_REASON_INTERNAL, f"{what} failed; the server's log says more")


def replica_failed() -> Refusal:
    return Refusal(
        grpc.StatusCode.INTERNAL, wire.ERROR_REASON_REPLICA_FAILED, "this replica has failed and must be restarted"
    )
