"""From the replica's stream to the caller's. Chunks pass as they are; only the first and the last message are read."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from octet.rpc.calls import CallerGone
from octet.rpc.finite import is_finite
from octet.v1 import specialist_pb2 as wire
from router.replicas.attempt import Attempt

_ACCEPTED = 0x0A
_CHUNK = 0x12
_USAGE = 0x1A
"""A message of one field begins with that field's tag: the same bytes in GenerateEvent and InferEvent."""
_MessageT = TypeVar("_MessageT", bound=Message)

Write: TypeAlias = Callable[[bytes], Awaitable[None]]


class Nonsense(Exception):
    """The replica broke the contract of its stream."""


class Hearing(Protocol):
    """Hears of what is worth writing down."""

    def accepted(self, accepted: wire.Accepted) -> bytes:
        """The event for the caller."""

    def first_chunk(self) -> None: ...

    def next_chunk(self) -> None: ...

    def used(self, usage: wire.Usage) -> None: ...


async def relay(attempt: Attempt, write: Write, hearing: Hearing) -> None:
    """To the end of a stream that ended well. Raises AioRpcError and Nonsense for the replica, CallerGone for the
    caller, CancelledError when the attempt was given up or the task is cancelled."""
    read = attempt.call.read
    accepted = False
    try:
        while (raw := await read()) is not grpc.aio.EOF:
            attempt.num_messages += 1
            kind = raw[0] if raw else 0
            if kind == _CHUNK:
                if not attempt.started:
                    if not accepted:
                        raise Nonsense("a token before it accepted")
                    attempt.start()
                    hearing.first_chunk()
                else:
                    hearing.next_chunk()
                attempt.writing = True
                await write(raw)
                attempt.writing = False
            elif kind == _USAGE:
                if not accepted:
                    raise Nonsense("usage before it accepted")
                hearing.used(_used(raw))
                if await read() is not grpc.aio.EOF:
                    raise Nonsense("more after its usage")
                return
            else:
                said = _accepted(raw)
                if accepted:
                    raise Nonsense("it accepted twice")
                accepted = True
                attempt.let_in()
                event = hearing.accepted(said)
                attempt.writing = True
                await write(event)
                attempt.writing = False
    except (grpc.aio.AioRpcError, Nonsense):
        raise
    except Exception as error:
        if attempt.writing:  # nothing can be written to a call that is over
            raise CallerGone from error
        raise
    raise Nonsense("its stream ended without usage")


def _accepted(raw: bytes) -> wire.Accepted:
    event = _parsed(wire.GenerateEvent, raw)
    if event.WhichOneof("event") != "accepted":
        raise Nonsense("an event of no known kind")
    return _finite(event.accepted)


def _parsed(kind: type[_MessageT], raw: bytes) -> _MessageT:
    try:
        return kind.FromString(raw)  # type: ignore[no-any-return]  # protobuf has no types of its own
    except DecodeError:
        raise Nonsense(f"not a {kind.DESCRIPTOR.name}") from None


def _used(raw: bytes) -> wire.Usage:
    return _finite(_parsed(wire.GenerateEvent, raw).usage)


def _finite(said: _MessageT) -> _MessageT:
    """It ends in receipts, which are told as JSON."""
    if not is_finite(said):
        raise Nonsense("a number that is not finite")
    return said
