"""Many requests over one call: each is a stream with its own credit and end, and one frame carries what all have."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from grpc import aio

from octet.limits import Range
from octet.rpc.handlers import CallerGone, Context, parse_request
from octet.rpc.refusal import (
    Refusal,
    caller_idle,
    caller_overflowed,
    deadline_exceeded,
    engine_failed,
    internal_error,
    invalid_field,
    queue_full,
)
from octet.telemetry.requests import TRACEPARENT, TRACESTATE
from octet.v1 import specialist_pb2 as wire
from specialist.scheduling.step import Emitted
from specialist.server.generate import GenerateHandler, RequestCall, send
from specialist.server.output_stream import merge_chunks, num_bytes
from specialist.server.served_request import (
    NOTHING,
    TOKEN_BYTES,
    AnswerChunk,
    RequestUpdate,
    RequestUsage,
    ServedRequest,
)
from specialist.server.settings import ServiceSettings
from specialist.server.validation import REQUEST_BYTES

_log = logging.getLogger(__name__)
CREDIT = Range(1, 2**31 - 1)  # bytes that a stream may have
FRAME_BYTES = 1 << 18  # a frame takes no further stream once its events have more bytes
_OK = 0
_CHUNKS = (Emitted, AnswerChunk)


class AttachedStream:
    """The updates of one request that wait for credit and for a frame. Used only on the event loop, except `is_due`."""

    __slots__ = (
        *("_attachment", "_max_bytes", "_num_bytes", "_stall", "_takes_tokens", "_tokens", "_waiting"),
        *("credit", "ended", "is_noted", "is_over", "is_urgent", "number", "sent", "served"),
    )

    def __init__(self, attachment: "Attachment", number: int, credit: int, max_bytes: int) -> None:
        self._attachment = attachment
        self.number = number
        self.credit = credit  # bytes that may be sent; below 0 if the last event had more
        self._max_bytes = max_bytes
        self._waiting: list[RequestUpdate] = []
        self._tokens: list[int] = []  # that came after these
        self._num_bytes = 0  # of those that wait, without these tokens
        self._takes_tokens = False  # after the first chunk
        self.is_urgent = False  # whether more than further chunks wait
        self.is_noted = False  # whether a frame will take what waits
        self.is_over = False  # nothing more is sent but the end
        self.ended = asyncio.Event()  # set with `is_over`
        self.sent = asyncio.Event()  # set once the end has been sent
        self._stall: asyncio.TimerHandle | None = None
        self.served: ServedRequest | None = None

    @property
    def is_due(self) -> bool:
        return self.credit > 0 and self._attachment.is_due

    def open(self, served: ServedRequest, _: Callable[[], None]) -> Callable[[], Awaitable[Any]]:
        served.stream, self.served = self, served
        return self.ended.wait

    def put(self, update: RequestUpdate) -> None:
        if self._takes_tokens and isinstance(update, Emitted) and not update.logprobs:  # most updates
            self._tokens += update.tokens
        elif self.is_over or update == NOTHING:
            return
        else:
            self._gather_tokens()
            self._waiting.append(update)
            if not isinstance(update, _CHUNKS):
                self.is_urgent = True
            else:
                self._num_bytes += num_bytes(update)
                if not self._takes_tokens:
                    self._takes_tokens = self.is_urgent = True
        if self._num_bytes + TOKEN_BYTES * len(self._tokens) > self._max_bytes:
            self._attachment.end(self, caller_overflowed(self._max_bytes))
        elif self.is_urgent or not self.is_noted:
            self._send_soon()

    def _send_soon(self) -> None:
        if self.credit > 0:
            self._attachment.note(self)
        elif self._stall is None:
            self._stall = self._attachment.watch(self)

    def add_credit(self, credit: int) -> None:
        self.credit += credit
        if self.credit > 0:
            self._stop_watching()
            if self._waiting or self._tokens:
                self._attachment.note(self)

    def _gather_tokens(self) -> None:
        if self._tokens:
            self._waiting.append(Emitted("", tuple(self._tokens)))
            self._num_bytes += TOKEN_BYTES * len(self._tokens)
            self._tokens.clear()

    @property
    def has_only_tokens(self) -> bool:
        """Whether only further tokens without log probabilities wait."""
        return not self._waiting

    def take_tokens(self) -> list[int]:
        taken, self._tokens = self._tokens, []
        self.is_noted = False
        return taken

    def take(self) -> list[RequestUpdate]:
        self._gather_tokens()
        taken, self._waiting, self._num_bytes = self._waiting, [], 0
        self.is_urgent = self.is_noted = False
        return merge_chunks(taken)

    def finish(self) -> None:
        self.is_over = True
        self.is_noted = self._takes_tokens = False
        self._waiting.clear()
        self._tokens.clear()
        self._stop_watching()
        self.ended.set()

    def _stop_watching(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None


class Attachment:
    """One attached call: the state of its streams, and its frames. First tokens and ends are sent at once; further
    chunks of all streams together, at least `piece_gap` apart. If the call breaks, its requests are cancelled."""

    def __init__(self, handler: GenerateHandler, settings: ServiceSettings, max_streams: int) -> None:
        self._handler = handler
        self._settings = settings
        self._max_streams = max_streams
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, AttachedStream] = {}  # whose end was not taken
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._last = 0  # the last stream that was started
        self._urgent: dict[AttachedStream, None] = {}  # with more than further chunks
        self._ready: dict[AttachedStream, None] = {}  # with further chunks only
        self._ends: dict[int, tuple[AttachedStream | None, wire.StreamEnd]] = {}
        self._awake = asyncio.Event()
        self._roomy = asyncio.Event()  # set by each frame
        self._gap_timer: asyncio.TimerHandle | None = None  # while no further chunks are sent
        self.is_due = True
        """Whether further chunks would be sent at once: the gap has passed and nothing came. Any thread may read it."""
        self._is_half_closed = False
        self._is_closing = False

    @property
    def num_streams(self) -> int:
        return len(self._tasks)

    async def serve(self, context: Context) -> None:
        """Serve the call until the client has closed it and all its streams have ended. Raises Refusal."""
        reading = self._loop.create_task(self._read(context))
        writing = self._loop.create_task(self._write(context))
        try:
            done, _ = await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            if writing not in done:
                reading.result()
            await writing
        finally:
            await self._abandon(reading, writing)

    async def _abandon(self, *tasks: asyncio.Task[None]) -> None:
        """Cancel what still runs, and wait until it has ended."""
        for stream in self._streams.values():
            stream.finish()
        if self._gap_timer is not None:
            self._gap_timer.cancel()
        remaining = [*tasks, *self._tasks.values()]
        for task in remaining:
            task.cancel()
        await asyncio.gather(*remaining, return_exceptions=True)

    def close(self) -> None:
        """End the call once its streams have ended."""
        self._is_closing = True
        self._awake.set()

    async def _read(self, context: Context) -> None:
        while (raw := await _read_message(context)) is not aio.EOF:
            self.receive(parse_request(raw, wire.AttachRequest, REQUEST_BYTES))
            while len(self._ends) > self._max_streams:  # the client must read before more is refused
                self._roomy.clear()
                await self._roomy.wait()
        self._is_half_closed = True
        self._awake.set()

    def receive(self, message: wire.AttachRequest) -> None:
        """Apply what the client has sent. Raises Refusal if it violates the protocol."""
        for start in message.starts:
            self._start(start)
        for credit in message.credits:
            self._check_started("credits.stream", credit.stream)
            stream = self._streams.get(credit.stream)
            _check_credit("credits.bytes", credit.bytes, 0 if stream is None else stream.credit)
            if stream is not None:
                stream.add_credit(credit.bytes)
        for number in message.cancels:
            self._check_started("cancels", number)
            self._cancel(number)

    def _check_started(self, field: str, number: int) -> None:
        if not 0 < number <= self._last:
            raise invalid_field(field, f"a stream of this call, from 1 to {self._last}", str(number))

    def _start(self, start: wire.StreamStart) -> None:
        if start.stream <= self._last:
            raise invalid_field("starts.stream", f"greater than {self._last}", str(start.stream))
        _check_credit("starts.credit", start.credit, 0)
        self._last = number = start.stream
        if len(self._tasks) >= self._max_streams:
            self._add_end(None, number, queue_full("open", self._max_streams, None))
            return
        stream = AttachedStream(self, number, start.credit, self._settings.stream_bytes)
        self._streams[number] = stream
        task = self._loop.create_task(self._answer(stream, start))
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._forget(number))

    def _forget(self, number: int) -> None:
        del self._tasks[number]
        if not self._tasks:
            self._awake.set()  # the call may be over

    async def _answer(self, stream: AttachedStream, start: wire.StreamStart) -> None:
        with self._handler.open_call():
            try:
                await self._serve(stream, start)
            except Refusal as refused:
                self.end(stream, refused)
            except Exception:
                _log.error("a stream failed", exc_info=True)
                self.end(stream, internal_error("GenerateRequest"))
            await stream.sent.wait()

    async def _serve(self, stream: AttachedStream, start: wire.StreamStart) -> None:
        seconds_left = start.timeout_us / 1e6 if start.HasField("timeout_us") else None
        if seconds_left is not None and seconds_left <= 0:
            raise deadline_exceeded()
        trace = ((TRACEPARENT, start.traceparent), (TRACESTATE, start.tracestate)) if start.traceparent else ()
        message = parse_request(start.request, wire.GenerateRequest, REQUEST_BYTES)
        await self._handler.serve(message, RequestCall(trace, seconds_left, stream.open))

    def _cancel(self, number: int) -> None:
        self._ends.pop(number, None)
        stream = self._streams.pop(number, None)
        if stream is not None:
            self._withdraw(stream)
            self._tasks[number].cancel()

    def _withdraw(self, stream: AttachedStream) -> None:
        self._urgent.pop(stream, None)
        self._ready.pop(stream, None)
        stream.finish()

    def note(self, stream: AttachedStream) -> None:
        """Send the stream's updates in a frame soon."""
        stream.is_noted = True
        if stream.is_urgent:
            self._ready.pop(stream, None)
            self._urgent[stream] = None
            self._awake.set()
            return
        self._ready[stream] = None
        if self._gap_timer is None:
            self.is_due = not self._settings.piece_gap
            self._awake.set()

    def watch(self, stream: AttachedStream) -> asyncio.TimerHandle:
        """End the stream unless it gets credit in time."""
        seconds = self._settings.stall_seconds
        return self._loop.call_later(seconds, lambda: self.end(stream, caller_idle(seconds)))

    def end(self, stream: AttachedStream, refusal: Refusal | None) -> None:
        """End the stream, unless it has ended. What waits is dropped."""
        if not stream.is_over:
            self._withdraw(stream)
            self._add_end(stream, stream.number, refusal)

    def _add_end(self, stream: AttachedStream | None, number: int, refusal: Refusal | None) -> None:
        if refusal is None:
            end = wire.StreamEnd(stream=number, code=_OK)
        else:
            code: int = refusal.code.value[0]
            end = wire.StreamEnd(stream=number, code=code, message=str(refusal), error=refusal.error)
        self._ends[number] = stream, end
        self._awake.set()

    async def _write(self, context: Context) -> None:
        hello = wire.AttachResponse(hello=wire.AttachHello(max_streams=self._max_streams))
        await self._send(context, hello)
        while not ((self._is_half_closed or self._is_closing) and not self._tasks):
            await self._awake.wait()
            self._awake.clear()
            frame, ended = self.take_frame()
            if frame is not None:
                await self._send(context, frame)
                self._roomy.set()
            for stream in ended:
                stream.sent.set()

    async def _send(self, context: Context, frame: wire.AttachResponse) -> None:
        await send(context, frame.SerializeToString(), self._settings.stall_seconds)

    def take_frame(self) -> tuple[wire.AttachResponse | None, list[AttachedStream]]:
        """Return the next frame and the streams that end with it; no frame if there is nothing to send."""
        numbers: list[int] = []
        events: list[bytes] = []
        streams, size = self._take_streams(), 0
        while streams and size <= FRAME_BYTES:
            size += self._fill(streams.pop(), numbers, events)
        if streams:
            self._urgent = dict.fromkeys(reversed(streams))
            self._awake.set()
        ends, self._ends = self._ends, {}
        if not (events or ends):
            return None, []
        for number in ends:
            self._streams.pop(number, None)
        frame = wire.AttachResponse(streams=numbers, events=events, ends=[end for _, end in ends.values()])
        return frame, [stream for stream, _ in ends.values() if stream is not None]

    def _take_streams(self) -> list[AttachedStream]:
        """Return the streams whose updates may be sent now, the first at the end."""
        taken, self._urgent = self._urgent, {}
        if self._gap_timer is None and not self._ready:
            self.is_due = True
        elif self._gap_timer is None:
            taken |= self._ready
            self._ready = {}
            if self._settings.piece_gap:
                self.is_due = False
                self._gap_timer = self._loop.call_later(self._settings.piece_gap, self._become_due)
        return [*taken][::-1]

    def _become_due(self) -> None:
        self._gap_timer = None
        self.is_due = True  # before the pull: the engine's thread puts a report first and reads this then
        if self._handler.pull is not None:
            self._handler.pull()
        if self._ready:
            self.is_due = False
            self._awake.set()

    def _fill(self, stream: AttachedStream, numbers: list[int], events: list[bytes]) -> int:
        """Add the stream's events to a frame, and return their size. If that fails, only this stream fails."""
        served, size = stream.served, 0
        if served is None:
            return 0
        try:
            if stream.has_only_tokens:  # in most frames
                events.append(served.encode_tokens(stream.take_tokens()))
                numbers.append(stream.number)
                stream.credit -= len(events[-1])
                return len(events[-1])
            for update in served.decode(stream.take()):
                if isinstance(update, Refusal):
                    self.end(stream, update)
                    break
                event: bytes = served.to_wire(update).SerializeToString()
                size += len(event)
                numbers.append(stream.number)
                events.append(event)
                if isinstance(update, RequestUsage):
                    self.end(stream, self._handler.failure(served, update))
        except Exception:
            _log.error("request %s failed", served.public_id, exc_info=True, extra=served.log_fields)
            self.end(stream, engine_failed(served.public_id))
        stream.credit -= size
        return size


async def _read_message(context: Context) -> Any:
    try:
        return await context.read()
    except Exception as error:  # gRPC raises various errors for a call that is over
        raise CallerGone from error


def _check_credit(field: str, added: int, before: int) -> None:
    if added not in CREDIT or before + added > CREDIT.most:
        limit = f"{CREDIT}, and at most {CREDIT.most:,} with what the stream has"
        raise invalid_field(field, limit, f"{added:,} in addition to {before:,}")
