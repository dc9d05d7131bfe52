"""Around every call: bytes in, a message or a typed refusal out, and nothing of the inside in between."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message

from octet.rpc.parse import parse
from octet.rpc.refusal import Refusal, failed_inside

_log = logging.getLogger(__name__)

Context: TypeAlias = Any
"""A grpc.aio.ServicerContext."""
_AskT = TypeVar("_AskT", bound=Message)
_Handler = Callable[[bytes, Context], Awaitable[Any]]
Malformed = Callable[[Refusal], None]
"""Hears of what cannot even be read, before it is refused."""


class CallerGone(Exception):
    """There is nobody left to answer."""


async def write(context: Context, message: Message, seconds: float) -> bool:
    """False when the caller's window stayed full for so long. Raises CallerGone."""
    try:
        async with asyncio.timeout(seconds):
            await context.write(message)
    except TimeoutError:
        return False
    except Exception as error:  # nothing can be written to a call that is over
        raise CallerGone from error
    return True


async def announce(context: Context, metadata: tuple[tuple[str, str], ...]) -> None:
    """The call's initial metadata, whole: gRPC could not tell anything more to one that was cancelled in between."""
    sending = asyncio.ensure_future(context.send_initial_metadata(metadata))
    try:
        await asyncio.shield(sending)
    except asyncio.CancelledError:
        await asyncio.gather(sending, return_exceptions=True)
        raise


def unary(kind: type[_AskT], answer: type[Message], serve: Callable[[_AskT], Awaitable[Message]], limit: int) -> Any:
    """A call with one answer. Its bytes are parsed here: gRPC itself would call malformed ones an internal error."""

    async def serve_alone(ask: _AskT, _: Context) -> Message:
        return await serve(ask)

    return grpc.unary_unary_rpc_method_handler(
        _guarded(kind, serve_alone, limit), response_serializer=answer.SerializeToString
    )


def unary_with_context(
    kind: type[_AskT],
    answer: type[Message],
    serve: Callable[[_AskT, Context], Awaitable[Message]],
    limit: int,
    malformed: Malformed | None = None,
) -> Any:
    """The same for a call that must know its deadline, its metadata or its caller's end."""
    return grpc.unary_unary_rpc_method_handler(
        _guarded(kind, serve, limit, malformed), response_serializer=answer.SerializeToString
    )


def streaming(
    kind: type[_AskT], answer: type[Message], serve: Callable[[_AskT, Context], Awaitable[None]], limit: int
) -> Any:
    """A call whose answers `serve` writes to the context."""
    return grpc.unary_stream_rpc_method_handler(
        _guarded(kind, serve, limit), response_serializer=answer.SerializeToString
    )


def relaying(
    kind: type[_AskT],
    serve: Callable[[_AskT, Context], Awaitable[None]],
    limit: int,
    malformed: Malformed | None = None,
) -> Any:
    """A call whose answers `serve` writes to the context as bytes, serialised already."""
    return grpc.unary_stream_rpc_method_handler(_guarded(kind, serve, limit, malformed))


def _guarded(
    kind: type[_AskT],
    serve: Callable[[_AskT, Context], Awaitable[Any]],
    limit: int,
    malformed: Malformed | None = None,
) -> _Handler:
    def parsed(raw: bytes) -> _AskT:
        try:
            return parse(raw, kind, limit)
        except Refusal as refusal:
            if malformed is not None:
                malformed(refusal)
            raise

    async def handle(raw: bytes, context: Context) -> Any:
        try:
            serving = serve(parsed(raw), context)
            del raw  # whoever serves keeps what it needs of it
            return await serving
        except Refusal as refusal:
            await refuse(context, refusal)
        except CallerGone:
            return None
        except Exception:
            _log.error("%s failed", kind.DESCRIPTOR.name, exc_info=True)
            await refuse(context, failed_inside(kind.DESCRIPTOR.name))

    return handle


async def refuse(context: Context, refusal: Refusal) -> None:
    """Ends the call."""
    await context.abort(refusal.code, str(refusal), refusal.metadata())
