"""From bytes, cut anywhere, to what they say. What may not be said at all is noticed here; who may say it of which
call, and when, is not."""

from typing import Protocol

from octet.rpc.http2 import errors, frames
from octet.rpc.http2.errors import ConnectionBroken, HeadersTooLong
from octet.rpc.http2.frames import HEAD, HEAD_BYTES, PADDED
from octet.rpc.http2.header_decoder import HeaderDecoder
from octet.rpc.http2.segments import Segments
from octet.rpc.http2.split_block import SplitBlock
from octet.rpc.http2.static_table import Headers

_PRIORITY_BYTES = 5
_MOST_WORDS = 256
_OF_ALL = frozenset((frames.SETTINGS, frames.PING, frames.GOAWAY))
"""Kinds that concern no stream."""


class Hearer(Protocol):
    def data(self, stream: int, size: int, data: bytes, at: int, end: int, is_last: bool) -> None:
        """What is between `at` and `end` was said; `size` is what it took of the windows."""

    def headers(self, stream: int, headers: Headers | None, is_last: bool) -> None:
        """None for too many."""

    def window_update(self, stream: int, more: int) -> None: ...

    def reset(self, stream: int, code: int) -> None: ...

    def settings(self, values: list[tuple[int, int]]) -> None: ...

    def ping(self, payload: bytes) -> None: ...

    def goaway(self, last: int, code: int, words: str) -> None: ...


class Parser:
    def __init__(self, hearer: Hearer) -> None:
        self._hearer = hearer
        self._segments = Segments()
        self._decoder = HeaderDecoder()
        self._split: SplitBlock | None = None
        self._is_first = True

    def take(self, segment: bytes) -> None:
        """Raises ConnectionBroken, and whatever the hearer raises."""
        data = self._segments.whole(segment)
        at, size = 0, len(data)
        while size - at >= HEAD_BYTES:
            word, flags, stream = HEAD.unpack_from(data, at)
            at += HEAD_BYTES
            end = at + (word >> 8)
            if end - at > frames.FRAME_BYTES:
                raise ConnectionBroken(errors.FRAME_SIZE_ERROR, "a frame is too long")
            if end > size:
                self._segments.keep(data, at - HEAD_BYTES, end - size)
                return
            kind = word & 0xFF
            stream &= frames.LAST_STREAM
            if kind == frames.DATA and self._split is None:
                self._data(flags, stream, data, at, end)
            else:
                self._other(kind, flags, stream, data[at:end])
            at = end
        if at < size:
            self._segments.keep(data, at, HEAD_BYTES - (size - at))

    def _data(self, flags: int, stream: int, data: bytes, at: int, end: int) -> None:
        size = end - at
        if flags & PADDED:
            at, end = _unpadded(data, at, end)
        self._hearer.data(stream, size, data, at, end, bool(flags & frames.END_STREAM))

    def _other(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._is_first and kind != frames.SETTINGS:
            raise ConnectionBroken(errors.PROTOCOL_ERROR, "it does not begin with its settings")
        self._is_first = False
        if (self._split is not None) != (kind == frames.CONTINUATION):
            raise ConnectionBroken(errors.PROTOCOL_ERROR, "headers are broken off")
        if kind in _OF_ALL:
            if stream:
                raise ConnectionBroken(errors.PROTOCOL_ERROR, "what concerns all of them is said of a stream")
            self._of_all(kind, flags, payload)
        elif kind == frames.HEADERS:
            self._headers(flags, stream, payload)
        elif kind == frames.CONTINUATION:
            self._continuation(flags, stream, payload)
        elif kind == frames.WINDOW_UPDATE:
            self._window_update(stream, payload)
        elif kind == frames.RST_STREAM:
            _check_size(payload, 4)
            self._hearer.reset(stream, int.from_bytes(payload, "big"))
        elif kind == frames.PUSH_PROMISE:
            raise ConnectionBroken(errors.PROTOCOL_ERROR, "a promise that nobody wants")

    def _of_all(self, kind: int, flags: int, payload: bytes) -> None:
        is_answer = bool(flags & frames.ACK)
        if kind == frames.GOAWAY:
            self._goaway(payload)
        elif kind == frames.PING:
            _check_size(payload, 8)
            if not is_answer:
                self._hearer.ping(payload)
        elif is_answer:
            _check_size(payload, 0)
        else:
            self._settings(payload)

    def _settings(self, payload: bytes) -> None:
        try:
            values = [*frames.settings_of(payload)]
        except ValueError as error:
            raise ConnectionBroken(errors.FRAME_SIZE_ERROR, str(error)) from None
        self._hearer.settings(values)

    def _goaway(self, payload: bytes) -> None:
        if len(payload) < 8:
            raise ConnectionBroken(errors.FRAME_SIZE_ERROR, "a farewell is too short")
        last, code = (int.from_bytes(payload[at : at + 4], "big") for at in (0, 4))
        words = payload[8 : 8 + _MOST_WORDS].decode("latin-1")
        self._hearer.goaway(last & frames.LAST_STREAM, code, words)

    def _window_update(self, stream: int, payload: bytes) -> None:
        _check_size(payload, 4)
        more = int.from_bytes(payload, "big") & frames.MOST_WINDOW
        if not more:
            raise ConnectionBroken(errors.PROTOCOL_ERROR, "a window that is widened by nothing")
        self._hearer.window_update(stream, more)

    def _headers(self, flags: int, stream: int, payload: bytes) -> None:
        at, end = _unpadded(payload, 0, len(payload)) if flags & PADDED else (0, len(payload))
        at += _PRIORITY_BYTES if flags & frames.PRIORITISED else 0
        if at > end:
            raise ConnectionBroken(errors.FRAME_SIZE_ERROR, "headers are too short")
        is_last = bool(flags & frames.END_STREAM)
        if flags & frames.END_HEADERS:
            self._block(stream, payload[at:end], is_last)
        else:
            self._split = SplitBlock(stream, payload[at:end], is_last)

    def _continuation(self, flags: int, stream: int, payload: bytes) -> None:
        split = self._split
        if split is None or split.stream != stream:
            raise ConnectionBroken(errors.PROTOCOL_ERROR, "headers are broken off")
        split.add(payload)
        if flags & frames.END_HEADERS:
            self._split = None
            self._block(stream, split.whole(), split.is_last)

    def _block(self, stream: int, block: bytes, is_last: bool) -> None:
        headers: Headers | None
        try:
            headers = self._decoder.decode(block)
        except HeadersTooLong:
            headers = None
        self._hearer.headers(stream, headers, is_last)


def _unpadded(data: bytes, at: int, end: int) -> tuple[int, int]:
    if at == end or data[at] >= end - at:
        raise ConnectionBroken(errors.PROTOCOL_ERROR, "more padding than there is frame")
    return at + 1, end - data[at]


def _check_size(payload: bytes, size: int) -> None:
    if len(payload) != size:
        raise ConnectionBroken(errors.FRAME_SIZE_ERROR, "a frame of a length that cannot be")
