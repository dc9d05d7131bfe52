"""How an attempt at a replica ended badly, and what that means for the next one."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal
from zlib import crc32

import grpc
from google.protobuf.message import DecodeError

from octet.rpc.refusal import METADATA_KEY, Refusal, past_deadline
from octet.rpc.unread import UNREAD
from octet.telemetry.outcome import NO_ROOM
from octet.v1 import error_pb2 as wire

Kind = Literal["free", "full", "dropped", "lost", "failed", "final"]
"""free: it was refused at the door or never got there, which cost nothing.
full: there is no room for it now: too many wait, or somebody would be late.
dropped: the connection or the replica went away, or the request did not get through in time, before it was accepted.
lost: the replica went away, or hung, while it had the request.
failed: the replica could not answer, and another one might.
final: another one would say the same."""

_FREE = {wire.ERROR_REASON_DRAINING, wire.ERROR_REASON_NOT_READY}
_FAILED = {wire.ERROR_REASON_ENGINE_FAILED, wire.ERROR_REASON_REPLICA_FAILED}
_CALLERS_FIELD = {"chat": "prompt", "chat.messages": "prompt", "chat.messages.role": "messages.role", "text": "prompt"}
"""What a replica calls the conversation. Whether the caller sent one message or many is not known here."""
_UNSERVED = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.ABORTED}

_AWAY = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
"""The connection; or gRPC itself cancels, without a reason, what nobody has looked at: the replica stops, or too many
wait."""

_SOONEST_MS = 50
_SPREAD_MS = 250


@dataclass(frozen=True, slots=True)
class Failure:
    kind: Kind
    refusal: Refusal
    """What the caller is told if nothing better comes of it."""
    is_break: bool = False
    """The connection went away, or the engine behind it, while the replica had the request."""

    @property
    def is_out_of_time(self) -> bool:
        """Whoever would be asked."""
        return self.refusal.code is grpc.StatusCode.DEADLINE_EXCEEDED

    @property
    def retry_after(self) -> float | None:
        error = self.refusal.error
        return error.retry_after_ms / 1000 if error.HasField("retry_after_ms") else None


def failure_of(error: Any, replica: str, *, was_open: bool, accepted: bool) -> Failure:
    """`error` is a grpc.aio.AioRpcError; `was_open`, whether the replica was connected and took requests when this one
    was sent; `accepted`, whether it took it."""
    code: grpc.StatusCode = error.code()
    said = _said(error.trailing_metadata() or ())
    if said is not None and said.reason == wire.ERROR_REASON_DEADLINE and said.field == UNREAD:
        return Failure("dropped", _undelivered(replica, said.message))
    if said is not None:
        died = accepted and said.reason == wire.ERROR_REASON_REPLICA_FAILED
        return Failure(_kind_of(said), _passed_on(code, said), died)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Failure("final", past_deadline())
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Failure("full", _full(replica))
    is_gone = code is grpc.StatusCode.UNAVAILABLE
    if code in _AWAY and not accepted:
        return Failure("dropped" if was_open else "free", unreachable(replica), was_open and is_gone)
    told = lost(replica, f"the call ended with {code.name}")
    return Failure("failed" if code in _UNSERVED else "lost", told, is_gone)


def lost(replica: str, why: str) -> Refusal:
    return Refusal(grpc.StatusCode.UNAVAILABLE, wire.ERROR_REASON_REPLICA_LOST, f"{replica} was lost: {why}")


def name_a_time(refusal: Refusal, request_id: str) -> None:
    """Whoever was lost may ask again at once, but not all of them at the same moment: spread by their ids."""
    if refusal.error.reason == wire.ERROR_REASON_REPLICA_LOST and not refusal.error.HasField("retry_after_ms"):
        refusal.error.retry_after_ms = _SOONEST_MS + crc32(request_id.encode()) % _SPREAD_MS


def unreachable(replica: str) -> Refusal:
    return Refusal(grpc.StatusCode.UNAVAILABLE, wire.ERROR_REASON_NO_REPLICA, f"{replica} cannot be reached")


def _undelivered(replica: str, why: str) -> Refusal:
    """The caller's own time may not be over: another link may be faster."""
    message = f"{replica} cannot be reached in time: {why}"
    return Refusal(grpc.StatusCode.UNAVAILABLE, wire.ERROR_REASON_NO_REPLICA, message)


def _full(replica: str) -> Refusal:
    message = f"{replica} takes no more calls"
    return Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, wire.ERROR_REASON_QUEUE_FULL, message)


def _kind_of(said: wire.Error) -> Kind:
    if said.reason in _FREE:
        return "free"
    if said.reason in NO_ROOM:
        return "full"
    return "failed" if said.reason in _FAILED else "final"


def _passed_on(code: grpc.StatusCode, said: wire.Error) -> Refusal:
    """The replica's own words, about the caller's own fields."""
    error = wire.Error()
    error.CopyFrom(said)
    if said.field in _CALLERS_FIELD:
        error.field = _CALLERS_FIELD[said.field]
        if said.message.startswith(f"{said.field} "):
            error.message = error.field + said.message.removeprefix(said.field)
    refusal = Refusal(code, error.reason, error.message)
    refusal.error.CopyFrom(error)
    return refusal


def _said(metadata: Iterable[tuple[str, bytes | str]]) -> wire.Error | None:
    for key, value in metadata:
        if key == METADATA_KEY and isinstance(value, bytes):
            error = wire.Error()
            try:
                error.ParseFromString(value)
            except DecodeError:
                return None
            return error
    return None
