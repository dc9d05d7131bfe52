"""What a replica says to a router, below its messages: frames and headers."""

from octet.rpc.http2 import frames
from octet.rpc.http2.errors import ConnectionBroken, HeadersTooLong
from octet.rpc.http2.header_block import custom, literal, opening
from octet.rpc.http2.header_decoder import HeaderDecoder
from octet.rpc.http2.inbox import Inbox, MessageRefused, framed
from octet.rpc.http2.parser import Parser as FrameParser
from octet.rpc.http2.static_table import Headers
from octet.rpc.http2.status import status_of
from tests.fuzz.parser import Parser

_TRAILERS = literal("grpc-status", "8") + literal("grpc-message", "no%20room") + custom([("said-bin", b"\x00\xff")])
_SAID = (
    frames.settings({frames.MAX_CONCURRENT_STREAMS: 100})
    + frames.frame(frames.HEADERS, frames.END_HEADERS, 1, b"\x88" + literal("content-type", "application/grpc"))
    + frames.frame(frames.DATA, frames.PADDED, 1, b"\x03" + framed(b"a token") + bytes(3))
    + frames.frame(frames.HEADERS, frames.END_STREAM, 1, _TRAILERS[:9])
    + frames.frame(frames.CONTINUATION, frames.END_HEADERS, 1, _TRAILERS[9:])
    + frames.ping(7)
    + frames.window_update(0, 1000)
    + frames.reset(3, 8)
    + frames.goaway(0, "bye")
)


class _Heard:
    """As a call would take it."""

    def __init__(self) -> None:
        self.inbox = Inbox(1 << 20)

    def data(self, stream: int, size: int, data: bytes, at: int, end: int, is_last: bool) -> None:
        self.inbox.take(data, at, end)

    def headers(self, stream: int, headers: Headers | None, is_last: bool) -> None:
        status_of(headers or ()).error(headers or ())

    def window_update(self, stream: int, more: int) -> None: ...

    def reset(self, stream: int, code: int) -> None: ...

    def settings(self, values: list[tuple[int, int]]) -> None: ...

    def ping(self, payload: bytes) -> None: ...

    def goaway(self, last: int, code: int, words: str) -> None: ...


def _parsed(raw: bytes) -> None:
    FrameParser(_Heard()).take(raw)


def _decoded(raw: bytes) -> None:
    status_of(HeaderDecoder().decode(raw)).error(())


PARSERS = [
    Parser("http2.frames", _parsed, (ConnectionBroken, MessageRefused), (_SAID,)),
    Parser(
        "http2.headers",
        _decoded,
        (ConnectionBroken, HeadersTooLong),
        (opening("http", "localhost", "/a/B"), _TRAILERS, bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff")),
    ),
]
