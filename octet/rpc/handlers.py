"""Handling of calls in every gRPC server: wait while draining, read and parse the request, send typed refusals."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import inf
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from grpc import aio
from grpc_health.v1 import health, health_pb2

from octet.limits import MAX_PROMPT_BYTES
from octet.rpc.messages import MAX_FIELDS, diagnose_malformed, has_at_most_fields
from octet.rpc.refusal import Refusal, internal_error, invalid_field, prompt_too_large, queue_full
from octet.v1 import error_pb2 as wire

_log = logging.getLogger(__name__)

Context: TypeAlias = Any  # a grpc.aio.ServicerContext
_RequestT = TypeVar("_RequestT", bound=Message)
_AnswerT = TypeVar("_AnswerT")
MalformedHook = Callable[[Refusal], None]  # called for a request that cannot be parsed, before it is refused
CallScope = Callable[[], AbstractContextManager[object]]  # entered before the request is read; may raise Refusal
READ_SECONDS = 20.0  # time for a request to arrive once its call has begun
UNREAD_FIELD = "request"
"""The field of a DEADLINE refusal if the request did not arrive. Other DEADLINE refusals are missed deadlines."""
MAX_PENDING_READS = 256
"""Maximum number of calls whose request has not arrived. Most requests arrive with their call; some are slower."""
MAX_STREAMS = 32  # concurrent calls of each method with a request stream
_READ_RETRY_SECONDS = 1.0
_IDLE_SECONDS = 1.0
_PROMPT_MESSAGES = ("InferRequest", "SubmitJobRequest")  # if one is too large, its prompt is too long
_SMALL_BYTES = 1 << 16  # messages up to this size cannot hold enough fields to do harm


class CallerGone(Exception):
    """The call has ended; nothing more can be sent."""


async def write_message(context: Context, message: Message | bytes, seconds: float) -> bool:
    """Write the message and return True; False if the caller reads nothing for `seconds`. Raises CallerGone."""
    try:
        async with asyncio.timeout(seconds):
            await context.write(message)
    except TimeoutError:
        return False
    except Exception as error:  # gRPC raises various errors for a call that is over
        raise CallerGone from error
    return True


async def send_initial_metadata(context: Context, metadata: tuple[tuple[str, str], ...]) -> None:
    """Finish sending the metadata even if the task is cancelled: otherwise gRPC could not send a status."""
    sending = asyncio.ensure_future(context.send_initial_metadata(metadata))
    try:
        await asyncio.shield(sending)
    except asyncio.CancelledError:
        await asyncio.gather(sending, return_exceptions=True)
        raise


async def refuse(context: Context, refusal: Refusal) -> None:
    await context.abort(refusal.code, str(refusal), refusal.metadata())


def unary_handler(
    kind: type[_RequestT], answer: type[Message], serve: Callable[[_RequestT], Awaitable[Message]], limit: int
) -> Any:
    """Return a handler for calls with one response. It parses the bytes itself, because gRPC would report malformed
    ones as an internal error. `limit` is the maximum size of a request in bytes."""
    return unary_context_handler(kind, answer, lambda request, _: serve(request), limit)


def unary_context_handler(
    kind: type[_RequestT],
    answer: type[Message],
    serve: Callable[[_RequestT, Context], Awaitable[Message]],
    limit: int,
    on_malformed: MalformedHook | None = None,
) -> Any:
    """Like `unary_handler`, but `serve` also gets the context, for the deadline or metadata."""
    parsing = _parsing(kind, serve, limit, on_malformed)
    return grpc.unary_unary_rpc_method_handler(parsing, response_serializer=answer.SerializeToString)


def streaming_handler(
    kind: type[_RequestT],
    answer: type[Message] | None,
    serve: Callable[[_RequestT, Context], Awaitable[None]],
    limit: int,
    on_malformed: MalformedHook | None = None,
) -> Any:
    """Return a handler for streamed responses. `serve` writes them to the context, as bytes unless `answer` is set."""
    serialize = None if answer is None else answer.SerializeToString
    return grpc.unary_stream_rpc_method_handler(_parsing(kind, serve, limit, on_malformed), None, serialize)


def duplex_handler(name: str, serve: Callable[[Context], Awaitable[None]]) -> Any:
    """Return a handler for calls with streams in both directions. `serve` reads bytes from the context and writes bytes
    to it. `name` is that of the request message."""

    async def handle(_: Any, context: Context) -> None:
        await _serve_or_refuse(serve(context), name, context)

    return grpc.stream_stream_rpc_method_handler(handle)


async def _serve_or_refuse(serving: Awaitable[_AnswerT], name: str, context: Context) -> _AnswerT | None:
    try:
        return await serving
    except Refusal as refusal:
        await refuse(context, refusal)
    except CallerGone:
        pass
    except Exception:
        _log.error("%s failed", name, exc_info=True)
        await refuse(context, internal_error(name))
    return None


def _parsing(
    kind: type[_RequestT],
    serve: Callable[[_RequestT, Context], Awaitable[Any]],
    limit: int,
    on_malformed: MalformedHook | None,
) -> Callable[[bytes, Context], Awaitable[Any]]:
    def parse(raw: bytes) -> _RequestT:
        try:
            return parse_request(raw, kind, limit)
        except Refusal as refusal:
            if on_malformed is not None:
                on_malformed(refusal)
            raise

    async def handle(raw: bytes, context: Context) -> Any:
        async def parse_and_serve() -> Any:
            nonlocal raw
            serving = serve(parse(raw), context)
            del raw  # frees the bytes while the request is served
            return await serving

        return await _serve_or_refuse(parse_and_serve(), kind.DESCRIPTOR.name, context)

    return handle


def parse_request(raw: bytes, kind: type[_RequestT], max_bytes: int) -> _RequestT:
    """Parse a request after checking its size and its number of fields, because even an empty field takes a hundred
    bytes of memory once parsed. Raises Refusal."""
    if len(raw) > max_bytes:
        if kind.DESCRIPTOR.name in _PROMPT_MESSAGES:
            raise prompt_too_large("request", MAX_PROMPT_BYTES, f"{len(raw):,} bytes")
        raise invalid_field("request", f"at most {max_bytes:,} bytes", f"{len(raw):,} bytes")
    if len(raw) > _SMALL_BYTES and not has_at_most_fields(MAX_FIELDS, raw, kind.DESCRIPTOR):
        raise invalid_field("request", f"a message with at most {MAX_FIELDS:,} fields", "more")
    message = kind()
    try:
        message.ParseFromString(raw)
    except DecodeError:
        raise diagnose_malformed(raw, kind) from None
    return message  # type: ignore[no-any-return]  # protobuf has no types of its own


class OpenCalls:
    """Counts calls that have not ended. Used only on the event loop."""

    def __init__(self) -> None:
        self.num_open = 0
        self._last_ended = -inf

    def count(self, handler: Any) -> Any:
        """Wrap the handler so that a call counts as open from its request to its status. Refused calls count too."""
        kind = "unary_stream" if handler.response_streaming else "unary_unary"
        behaviour = getattr(handler, kind)

        async def serve(request: Any, context: Context) -> Any:
            self.num_open += 1
            try:
                serving = behaviour(request, context)
                del request  # frees the bytes while the request is served
                return await serving
            finally:
                self.num_open -= 1
                self._last_ended = asyncio.get_running_loop().time()

        return handler._replace(**{kind: serve})

    def are_quiet(self) -> bool:
        """Whether no call is open and none has ended within the last second."""
        return not self.num_open and asyncio.get_running_loop().time() - self._last_ended > _IDLE_SECONDS


class RequestReader:
    """Reads the requests of calls. If too many reads are pending, the oldest is refused, so that callers that send no
    request cannot keep others out."""

    def __init__(self, seconds: float = READ_SECONDS, max_pending: int = MAX_PENDING_READS) -> None:
        self._seconds = seconds
        self._max_pending = max_pending
        self._pending: dict[asyncio.Timeout, None] = {}  # oldest first

    async def read(self, context: Context) -> bytes:
        """Return the request. Raises Refusal if it does not arrive in time."""
        timeout = asyncio.timeout(self._seconds)
        try:
            async with timeout:
                self._pending[timeout] = None
                self._refuse_oldest()
                request = await context.read()
        except TimeoutError:
            if timeout not in self._pending:
                raise queue_full("being read", self._max_pending, _READ_RETRY_SECONDS) from None
            message = f"the request did not arrive within {self._seconds:g} s"
            raise Refusal(wire.ERROR_REASON_DEADLINE, message, field=UNREAD_FIELD) from None
        finally:
            self._pending.pop(timeout, None)
        if request is aio.EOF:
            raise invalid_field("request", "one message", "none")
        return bytes(request)

    def _refuse_oldest(self) -> None:
        while len(self._pending) > self._max_pending:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            if not oldest.expired():
                oldest.reschedule(asyncio.get_running_loop().time())


class ConcurrencyLimit:
    def __init__(self, most: int, state: str = "being answered") -> None:
        """`state` completes the refusal's message: "N requests are already `state`"."""
        self._most = most
        self._state = state
        self.num_open: Counter[str] = Counter()

    @contextmanager
    def enter(self, method: str = "") -> Iterator[None]:
        """Count a call until the block ends. Each method has its own count. Raises Refusal if the limit is reached."""
        if self.num_open[method] >= self._most:
            raise queue_full(self._state, self._most, None)
        self.num_open[method] += 1
        try:
            yield
        finally:
            self.num_open[method] -= 1


def single_request_handler(handler: Any, scope: CallScope, reader: RequestReader) -> Any:
    """Wrap a handler so that `reader` reads its single request. Reading and serving both run inside `with scope()`."""
    behaviour = handler.unary_stream if handler.response_streaming else handler.unary_unary

    async def serve(_: Any, context: Context) -> Any:
        try:
            with scope():
                request = _deserialize(await reader.read(context), handler)
                serving = behaviour(request, context)
                del request
                return await serving
        except Refusal as refusal:
            await refuse(context, refusal)

    if handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(serve, None, handler.response_serializer)
    return grpc.stream_unary_rpc_method_handler(serve, None, handler.response_serializer)


def limited_handler(handler: Any, scope: CallScope) -> Any:
    """Wrap a duplex handler so that it runs inside `with scope()`."""

    async def serve(requests: Any, context: Context) -> None:
        try:
            with scope():
                await handler.stream_stream(requests, context)
        except Refusal as refusal:
            await refuse(context, refusal)

    return grpc.stream_stream_rpc_method_handler(serve)


def request_stream_handler(handler: Any, scope: CallScope) -> Any:
    """Wrap a handler of request streams, such as reflection's, so that it runs inside `with scope()`."""

    async def serve(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[Any]:
        try:
            with scope():
                messages = (_deserialize(raw, handler) async for raw in requests)
                async for answer in handler.stream_stream(messages, context):
                    yield answer
        except Refusal as refusal:
            await refuse(context, refusal)

    return grpc.stream_stream_rpc_method_handler(serve, None, handler.response_serializer)


def _deserialize(raw: bytes, handler: Any) -> Any:
    """Parse a health or reflection request; gRPC would report a malformed one as an internal error. Raises Refusal."""
    if handler.request_deserializer is None:
        return raw
    try:
        return handler.request_deserializer(raw)
    except DecodeError:
        message = "request: not a message that this call accepts"
        limit = "a serialised message of the call's request type"
        raise Refusal(wire.ERROR_REASON_MALFORMED, message, field="request", limit=limit) from None


class HealthService(health.aio.HealthServicer):  # type: ignore[misc]  # gRPC has no types
    """The standard health service. The library's own lacks `List`."""

    def __init__(self) -> None:
        super().__init__()
        self._statuses: dict[str, Any] = {}

    async def set(self, service: str, status: Any) -> None:
        self._statuses[service] = health_pb2.HealthCheckResponse(status=status)
        await super().set(service, status)

    async def List(self, _: Any, __: Context) -> Any:  # noqa: N802  # the name of the call
        return health_pb2.HealthListResponse(statuses=self._statuses)


class RequestReadInterceptor(aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no types
    """Reads requests for servers without API keys."""

    def __init__(self, reader: RequestReader, duplex: Mapping[str, int] = MappingProxyType({})) -> None:
        """`duplex` has the maximum number of calls of methods that read their requests themselves."""
        self._reader = reader
        self._stream_limit = ConcurrencyLimit(MAX_STREAMS)
        self._duplex_limits = {method: ConcurrencyLimit(most) for method, most in duplex.items()}

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        if details.method in self._duplex_limits:
            return limited_handler(handler, self._duplex_limits[details.method].enter)
        if handler.request_streaming:
            return request_stream_handler(handler, lambda: self._stream_limit.enter(details.method))
        return single_request_handler(handler, nullcontext, self._reader)
