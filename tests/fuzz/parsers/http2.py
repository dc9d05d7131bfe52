"""HTTP/2 frames and headers from a replica."""

from router.dispatch.http2 import frames
from router.dispatch.http2.call import MessageBuffer, MessageRefused, frame_message, parse_status
from router.dispatch.http2.frames import (
    FrameParser,
    HeaderDecoder,
    HeadersInvalid,
    HeadersTooLong,
    ProtocolViolation,
    encode_call_headers,
    encode_literal,
    encode_metadata,
)
from router.dispatch.http2.hpack_tables import Headers
from tests.fuzz.parser import Parser

_TRAILERS = (
    encode_literal("grpc-status", "8")
    + encode_literal("grpc-message", "no%20room")
    + encode_metadata([("said-bin", b"\x00\xff")])
)
_SAID = (
    frames.settings({frames.MAX_CONCURRENT_STREAMS: 100})
    + frames.frame(frames.HEADERS, frames.END_HEADERS, 1, b"\x88" + encode_literal("content-type", "application/grpc"))
    + frames.frame(frames.DATA, frames.PADDED, 1, b"\x03" + frame_message(b"a token") + bytes(3))
    + frames.frame(frames.HEADERS, frames.END_STREAM, 1, _TRAILERS[:9])
    + frames.frame(frames.CONTINUATION, frames.END_HEADERS, 1, _TRAILERS[9:])
    + frames.ping(7)
    + frames.window_update(0, 1000)
    + frames.reset(3, 8)
    + frames.goaway(0, "bye")
)


class _FakeCall:
    """Receives the events of a connection, as a call does."""

    def __init__(self) -> None:
        self.buffer = MessageBuffer(1 << 20)

    def data(self, stream: int, size: int, data: bytes, at: int, end: int, is_last: bool) -> None:
        self.buffer.take(data, at, end)

    def headers(self, stream: int, headers: Headers | None, is_last: bool) -> None:
        parse_status(headers or ()).error(headers or ())

    def window_update(self, stream: int, more: int) -> None: ...

    def reset(self, stream: int, code: int) -> None: ...

    def settings(self, values: list[tuple[int, int]]) -> None: ...

    def ping(self, payload: bytes) -> None: ...

    def goaway(self, last: int, code: int, words: str) -> None: ...


def _parsed(raw: bytes) -> None:
    FrameParser(_FakeCall()).take(raw)


def _decoded(raw: bytes) -> None:
    parse_status(HeaderDecoder().decode(raw)).error(())


PARSERS = [
    Parser("http2.frames", _parsed, (ProtocolViolation, MessageRefused), (_SAID,)),
    Parser(
        "http2.headers",
        _decoded,
        (HeadersInvalid, HeadersTooLong),
        (
            encode_call_headers("http", "localhost", "/a/B"),
            _TRAILERS,
            bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff"),
        ),
    ),
]
