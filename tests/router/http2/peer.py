"""The scripted server side of a connection: it records every frame and sends any bytes."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeAlias

import grpc
import uvloop
from grpc.aio import EOF, AioRpcError

from router.dispatch.http2 import frames
from router.dispatch.http2.call import Http2Call, ReadLimits, frame_message
from router.dispatch.http2.connection import Http2Connection
from router.dispatch.http2.frames import END_HEADERS, END_STREAM, encode_call_headers, encode_literal
from tests.patience import PATIENCE

GREETING = b"\x88" + encode_literal("content-type", "application/grpc")
WELL = encode_literal("grpc-status", "0")
MOST_MESSAGE = 1 << 20
Loop: TypeAlias = Callable[[], asyncio.AbstractEventLoop]


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


def frames_of(raw: bytes) -> list[Frame]:
    found, at = [], 0
    while at < len(raw):
        word, flags, stream = frames.HEAD.unpack_from(raw, at)
        end = at + 9 + (word >> 8)
        found.append(Frame(word & 255, flags, stream, raw[at + 9 : end]))
        at = end
    assert at == len(raw), "only whole frames may be written"
    return found


def greeting(stream: int) -> bytes:
    return frames.frame(frames.HEADERS, END_HEADERS, stream, GREETING)


def message(stream: int, raw: bytes) -> bytes:
    return frames.frame(frames.DATA, 0, stream, frame_message(raw))


def trailers(stream: int, block: bytes = WELL) -> bytes:
    return frames.frame(frames.HEADERS, END_HEADERS | END_STREAM, stream, block)


class Wire(asyncio.Transport):
    """A transport that records all written bytes."""

    def __init__(self, connection: Http2Connection, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._connection = connection
        self._loop = loop
        self.written = b""
        self.num_writes = 0
        self.is_closed = False

    def write(self, data: Any) -> None:
        assert not self.is_closed
        self.written += bytes(data)
        self.num_writes += 1

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._loop.call_soon(self._connection.connection_lost, None)

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0


class Peer:
    def __init__(self, lookahead: int = frames.DEFAULT_WINDOW) -> None:
        loop = asyncio.get_running_loop()
        self.lookahead = lookahead
        self.gone: list[Http2Connection] = []
        self.connection = Http2Connection(loop, lookahead, self.gone.append)
        self.wire = Wire(self.connection, loop)
        self.connection.connection_made(self.wire)
        assert self.wire.written.startswith(frames.PREFACE)
        self.wire.written = self.wire.written.removeprefix(frames.PREFACE)

    def send(self, *raw: bytes) -> None:
        for each in raw:
            if not self.wire.is_closed:
                self.connection.data_received(each)

    def take_frames(self) -> list[Frame]:
        """Return the frames written since the last call."""
        read_to_end, self.wire.written = frames_of(self.wire.written), b""
        return read_to_end

    def settle(self, settings: dict[int, int] | None = None) -> None:
        self.send(frames.settings(settings or {}))
        self.take_frames()

    def call(self, raw: bytes = b"ask", timeout: float | None = None) -> Http2Call:
        call = Http2Call(
            asyncio.get_running_loop(),
            encode_call_headers("http", "there", "/a/B"),
            raw,
            timeout,
            ReadLimits(MOST_MESSAGE, self.lookahead),
        )
        self.connection.begin(call)
        return call

    async def lose(self) -> None:
        self.wire.close()
        await asyncio.sleep(0)
        self.check_nothing_left()

    def check_nothing_left(self) -> None:
        assert len(self.connection.calls) == 0
        assert self.connection.closed.done() and self.connection.ready.done()


async def read_to_end(call: Http2Call) -> tuple[list[bytes], str]:
    """Read a call to its end. Return its messages and its status."""
    messages: list[bytes] = []
    try:
        while (raw := await call.read()) is not EOF:
            messages.append(raw)
    except AioRpcError as error:
        return messages, error.code().name
    except asyncio.CancelledError:
        return messages, "cancelled here"
    return messages, "OK"


def status(code: grpc.StatusCode) -> bytes:
    return encode_literal("grpc-status", str(code.value[0]))


def run_on_loop(scenario: Callable[[], Coroutine[Any, Any, None]], loop: Loop = asyncio.new_event_loop) -> None:
    """Run the scenario on an event loop, and wait until no other task is left."""

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await scenario()
            while len(asyncio.all_tasks()) > 1:  # gRPC's server needs some time to end its tasks.
                await asyncio.sleep(0.01)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(bounded())


def run_on_both_loops(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the scenario on uvloop, which routers use, and on asyncio's loop."""
    for loop in (uvloop.new_event_loop, asyncio.new_event_loop):
        run_on_loop(scenario, loop)
