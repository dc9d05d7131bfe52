"""HTTP/2 on the wire: frames (RFC 9113) and header blocks (HPACK, RFC 7541).

The encoder never uses the dynamic table, so an encoded block is valid on any connection.
"""

import struct
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache
from typing import Protocol, TypeAlias

from router.dispatch.http2.hpack_tables import STATIC_TABLE, Header, Headers, huffman_decode

MetadataPairs: TypeAlias = Iterable[tuple[str, str | bytes]]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, _PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ACK = END_STREAM = 0x1
END_HEADERS, PADDED, PRIORITY = 0x4, 0x8, 0x20
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = range(1, 5)
MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 5, 6
HEAD = struct.Struct(">IBI")  # length and type in one word, flags, stream
HEAD_BYTES = HEAD.size
FRAME_BYTES = 16_384  # the largest payload, unless the peer allows more
MAX_FRAME_BYTES = 2**24 - 1
DEFAULT_WINDOW = 65_535
MAX_WINDOW = LAST_STREAM = 2**31 - 1
MAX_BLOCK_BYTES = 64 << 10
MAX_BLOCK_FRAMES = 64
_PRIORITY_BYTES = 5
_MAX_REASON_BYTES = 256
_CONNECTION_FRAMES = frozenset((SETTINGS, PING, GOAWAY))

TABLE_BYTES = 4096
MAX_HEADER_LIST_BYTES = 64 << 10  # size of one header list as HPACK counts it
RESET_TABLE = b"\x20"  # sets the size of the dynamic table to 0
_ENTRY_BYTES = 32
_EXCESS_FACTOR = 3  # a list that exceeds the limit by more than this many times the limit ends the connection
_MAX_SHIFT = 28
_MAX_CACHED_BLOCKS = 64
_MAX_CACHED_BYTES = 256
_POST = b"\x83"
_SCHEMES = {"http": b"\x86", "https": b"\x87"}
_AUTHORITY, _PATH, _CONTENT_TYPE, _USER_AGENT = 1, 4, 31, 58  # indices in the static table
_LITERAL = b"\x00"  # starts a literal that is not indexed and has a literal name
_TIMEOUT_UNITS = ((1e6, b"u"), (1e3, b"m"), (1.0, b"S"))
_MAX_TIMEOUT = 99_999_999
_BINARY_SUFFIX = "-bin"
_RESERVED = frozenset(("grpc-status", "grpc-message", "content-type", "grpc-encoding", "grpc-accept-encoding"))


ErrorCode = IntEnum(
    "ErrorCode",
    "NO_ERROR PROTOCOL_ERROR INTERNAL_ERROR FLOW_CONTROL_ERROR SETTINGS_TIMEOUT STREAM_CLOSED FRAME_SIZE_ERROR "
    "REFUSED_STREAM CANCEL COMPRESSION_ERROR CONNECT_ERROR ENHANCE_YOUR_CALM INADEQUATE_SECURITY HTTP_1_1_REQUIRED",
    start=0,
)
_ERROR_NAMES = {code.value: code.name for code in ErrorCode}


def error_name(code: int) -> str:
    return _ERROR_NAMES.get(code, f"error {code:#x}")


class ProtocolViolation(Exception):
    """The server violated the protocol; the connection must end."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class HeadersInvalid(ValueError):
    """The header block is invalid; the connection's decoder state is lost."""


class HeadersTooLong(Exception):
    """The header list of one stream exceeds the limit; the decoder state is intact."""


def head(length: int, kind: int, flags: int, stream: int) -> bytes:
    return HEAD.pack(length << 8 | kind, flags, stream)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", name, value) for name, value in values.items()))


def window_update(stream: int, increment: int) -> bytes:
    return head(4, WINDOW_UPDATE, 0, stream) + increment.to_bytes(4, "big")


def reset(stream: int, code: int) -> bytes:
    return head(4, RST_STREAM, 0, stream) + code.to_bytes(4, "big")


def goaway(code: int, reason: str = "") -> bytes:
    """Return a GOAWAY frame. Its last stream id is 0, because servers start no streams."""
    return frame(GOAWAY, 0, 0, bytes(4) + code.to_bytes(4, "big") + reason.encode()[:_MAX_REASON_BYTES])


def ping(number: int) -> bytes:
    return frame(PING, 0, 0, number.to_bytes(8, "big"))


def header_frames(stream: int, block: bytes, max_payload: int) -> bytes:
    """Return a HEADERS frame, followed by CONTINUATION frames if the block is longer than one payload."""
    if len(block) <= max_payload:
        return frame(HEADERS, END_HEADERS, stream, block)
    first, *middle, last = [block[at : at + max_payload] for at in range(0, len(block), max_payload)]
    continued = b"".join(frame(CONTINUATION, 0, stream, part) for part in middle)
    return frame(HEADERS, 0, stream, first) + continued + frame(CONTINUATION, END_HEADERS, stream, last)


class FrameHandler(Protocol):
    def data(self, stream: int, size: int, data: bytes, at: int, end: int, is_last: bool) -> None:
        """The payload is `data[at:end]`; `size` counts against the flow-control windows."""

    def headers(self, stream: int, headers: Headers | None, is_last: bool) -> None:
        """`headers` is None when the list is too long."""

    def window_update(self, stream: int, increment: int) -> None: ...
    def reset(self, stream: int, code: int) -> None: ...
    def settings(self, values: list[tuple[int, int]]) -> None: ...
    def ping(self, payload: bytes) -> None: ...
    def goaway(self, last_stream: int, code: int, reason: str) -> None: ...


class FrameParser:
    """Reassembles frames from segments of any size and validates their format, but not the state of their streams."""

    def __init__(self, handler: FrameHandler) -> None:
        self._handler = handler
        self._kept: list[bytes] = []
        self._num_missing = 0  # bytes that the kept segments still lack for a whole frame
        self._decoder = HeaderDecoder()
        self._block: tuple[int, bool, list[bytes]] | None = None  # the unfinished header block: stream, is_last, parts
        self._is_first = True

    def take(self, segment: bytes) -> None:
        """Pass each complete frame to the handler. Raises ProtocolViolation, and whatever the handler raises."""
        if self._kept:
            self._kept.append(segment)
            self._num_missing -= len(segment)
            if self._num_missing > 0:
                return
            segment = b"".join(self._kept)
            self._kept.clear()
        data, at, size = segment, 0, len(segment)
        while size - at >= HEAD_BYTES:
            word, flags, stream = HEAD.unpack_from(data, at)
            at += HEAD_BYTES
            end = at + (word >> 8)
            if end - at > FRAME_BYTES:
                raise ProtocolViolation(ErrorCode.FRAME_SIZE_ERROR, f"frame longer than {FRAME_BYTES:,} bytes")
            if end > size:
                self._keep(data[at - HEAD_BYTES :], end - size)
                return
            kind = word & 0xFF
            stream &= LAST_STREAM
            if kind == DATA and self._block is None:
                start, stop = _strip_padding(data, at, end) if flags & PADDED else (at, end)
                self._handler.data(stream, end - at, data, start, stop, bool(flags & END_STREAM))
            else:
                self._control_frame(kind, flags, stream, data[at:end])
            at = end
        if at < size:
            self._keep(data[at:], HEAD_BYTES - (size - at))

    def _keep(self, rest: bytes, num_missing: int) -> None:
        self._kept.append(rest)
        self._num_missing = num_missing

    def _control_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._is_first and kind != SETTINGS:
            raise ProtocolViolation(ErrorCode.PROTOCOL_ERROR, "the first frame must be SETTINGS")
        self._is_first = False
        if (self._block is not None) != (kind == CONTINUATION):
            raise ProtocolViolation(ErrorCode.PROTOCOL_ERROR, "CONTINUATION frame missing or unexpected")
        if kind in _CONNECTION_FRAMES:
            if stream:
                raise ProtocolViolation(ErrorCode.PROTOCOL_ERROR, "SETTINGS, PING or GOAWAY frame on a stream")
            self._connection_frame(kind, flags, payload)
        elif kind == HEADERS:
            self._headers(flags, stream, payload)
        elif kind == CONTINUATION:
            self._continuation(flags, stream, payload)
        elif kind == WINDOW_UPDATE:
            _check_size(payload, 4)
            increment = int.from_bytes(payload, "big") & MAX_WINDOW
            if not increment:
                raise ProtocolViolation(ErrorCode.PROTOCOL_ERROR, "window increment of 0")
            self._handler.window_update(stream, increment)
        elif kind == RST_STREAM:
            _check_size(payload, 4)
            self._handler.reset(stream, int.from_bytes(payload, "big"))
        elif kind == PUSH_PROMISE:
            raise ProtocolViolation(ErrorCode.PROTOCOL_ERROR, "server push is disabled")

    def _connection_frame(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == GOAWAY:
            if len(payload) < 8:
                raise ProtocolViolation(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY frame too short")
            last, code = struct.unpack_from(">II", payload)
            self._handler.goaway(last & LAST_STREAM, code, payload[8 : 8 + _MAX_REASON_BYTES].decode("latin-1"))
        elif kind == PING:
            _check_size(payload, 8)
            if not flags & ACK:
                self._handler.ping(payload)
        elif flags & ACK:
            _check_size(payload, 0)
        elif len(payload) % 6:
            raise ProtocolViolation(ErrorCode.FRAME_SIZE_ERROR, "a SETTINGS frame must be a multiple of 6 bytes")
        else:
            self._handler.settings([*struct.iter_unpack(">HI", payload)])

    def _headers(self, flags: int, stream: int, payload: bytes) -> None:
        at, end = _strip_padding(payload, 0, len(payload)) if flags & PADDED else (0, len(payload))
        at += _PRIORITY_BYTES if flags & PRIORITY else 0
        if at > end:
            raise ProtocolViolation(ErrorCode.FRAME_SIZE_ERROR, "HEADERS frame too short")
        is_last = bool(flags & END_STREAM)
        if flags & END_HEADERS:
            self._decode(stream, payload[at:end], is_last)
        else:
            self._block = stream, is_last, [payload[at:end]]

    def _continuation(self, flags: int, stream: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != stream:
            raise ProtocolViolation(ErrorCode.PROTOCOL_ERROR, "CONTINUATION frame without HEADERS on its stream")
        _, is_last, parts = self._block
        parts.append(payload)
        if sum(map(len, parts)) > MAX_BLOCK_BYTES or len(parts) > MAX_BLOCK_FRAMES:
            limit = f"{MAX_BLOCK_BYTES:,} bytes or {MAX_BLOCK_FRAMES} frames"
            raise ProtocolViolation(ErrorCode.ENHANCE_YOUR_CALM, f"header block longer than {limit}")
        if flags & END_HEADERS:
            self._block = None
            self._decode(stream, b"".join(parts), is_last)

    def _decode(self, stream: int, block: bytes, is_last: bool) -> None:
        headers: Headers | None
        try:
            headers = self._decoder.decode(block)
        except HeadersTooLong:
            headers = None
        except HeadersInvalid as error:
            raise ProtocolViolation(ErrorCode.COMPRESSION_ERROR, str(error)) from None
        self._handler.headers(stream, headers, is_last)


def _strip_padding(data: bytes, at: int, end: int) -> tuple[int, int]:
    if at == end or data[at] >= end - at:
        raise ProtocolViolation(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
    return at + 1, end - data[at]


def _check_size(payload: bytes, size: int) -> None:
    if len(payload) != size:
        raise ProtocolViolation(ErrorCode.FRAME_SIZE_ERROR, f"payload of {len(payload)} bytes, expected {size}")


def encode_call_headers(scheme: str, authority: str, path: str) -> bytes:
    target = _SCHEMES[scheme] + _indexed_name(_PATH, path) + _indexed_name(_AUTHORITY, authority)
    content = _indexed_name(_CONTENT_TYPE, "application/grpc") + _indexed_name(_USER_AGENT, "octet")
    return _POST + target + encode_literal("te", "trailers") + content


def encode_timeout(seconds: float) -> bytes:
    """Return the encoded `grpc-timeout` header, in microseconds if eight digits suffice."""
    for factor, unit in _TIMEOUT_UNITS:
        if seconds * factor < _MAX_TIMEOUT:
            return _TIMEOUT + encode_string(b"%d%s" % (max(1, round(seconds * factor)), unit))
    return _TIMEOUT + encode_string(b"%dH" % min(_MAX_TIMEOUT, round(seconds / 3600)))


def encode_metadata(metadata: MetadataPairs) -> bytes:
    """Return encoded header fields. Raises ValueError for a key or value that gRPC metadata cannot carry."""
    return b"".join([_metadata_key(key) + encode_string(_metadata_value(key, value)) for key, value in metadata])


def decode_metadata(headers: Iterable[Header]) -> tuple[tuple[str, str | bytes], ...]:
    """Return the server's metadata. Values of `-bin` keys that are not base64 are left out."""
    found: list[tuple[str, str | bytes]] = []
    for key, value in headers:
        if key in _RESERVED or key.startswith(":"):
            continue
        if not key.endswith(_BINARY_SUFFIX):
            found.append((key, value))
            continue
        try:
            found += [(key, _decode_base64(part)) for part in value.split(",")]
        except ValueError:
            continue
    return tuple(found)


def encode_literal(name: str, value: str) -> bytes:
    return _LITERAL + encode_string(name.encode()) + encode_string(value.encode())


def encode_string(raw: bytes) -> bytes:
    return encode_integer(len(raw), 7) + raw


def encode_integer(value: int, bits: int, first: int = 0) -> bytes:
    """Return an HPACK integer with a prefix of `bits` bits. `first` holds the bits above the prefix."""
    limit = (1 << bits) - 1
    if value < limit:
        return bytes((first | value,))
    out = bytearray((first | limit,))
    value -= limit
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_TIMEOUT = _LITERAL + encode_string(b"grpc-timeout")


def _indexed_name(index: int, value: str) -> bytes:
    return encode_integer(index, 4) + encode_string(value.encode())


@lru_cache(256)
def _metadata_key(key: str) -> bytes:
    allowed = key.isascii() and key.replace("-", "").replace("_", "").replace(".", "").isalnum() and key == key.lower()
    if not allowed or key.startswith("grpc-"):
        raise ValueError(f"invalid metadata key {key!r}")
    return _LITERAL + encode_string(key.encode())


def _metadata_value(key: str, value: str | bytes) -> bytes:
    if key.endswith(_BINARY_SUFFIX):
        if not isinstance(value, bytes):
            raise ValueError(f"metadata {key} must be bytes")
        return b64encode(value).rstrip(b"=")
    text = value.decode("ascii") if isinstance(value, bytes) else value
    if not (text.isascii() and text.isprintable()):
        raise ValueError(f"metadata {key} must be printable ASCII")
    return text.encode()


def _decode_base64(text: str) -> bytes:
    bare = text.strip().rstrip("=")
    return b64decode(bare + "=" * (-len(bare) % 4), validate=True)


class HeaderDecoder:
    """Decodes the header blocks of one connection. Every block must be passed to it, in order."""

    def __init__(self, max_list_bytes: int = MAX_HEADER_LIST_BYTES) -> None:
        self._max_list_bytes = max_list_bytes
        self._table: deque[Header] = deque()  # newest first
        self._table_bytes = 0
        self._max_table_bytes = TABLE_BYTES
        self._cached: dict[bytes, Headers] = {}  # decoded headers by block, for blocks that do not change the table

    def decode(self, block: bytes) -> Headers:
        """Return a block's headers. Raises HeadersInvalid or, after the dynamic table is updated, HeadersTooLong."""
        cached = self._cached.get(block)
        if cached is not None:
            return cached
        try:
            return self._decode(block)
        except (IndexError, ValueError) as error:
            raise HeadersInvalid(f"invalid header block: {error}") from None

    def _decode(self, block: bytes) -> Headers:
        reader = _BlockReader(block)
        changes_table = reader.first >> 5 == 0b001
        while reader.first >> 5 == 0b001:
            self._resize_table(reader.integer(5))
        found: list[Header] = []
        bytes_left = self._max_list_bytes
        while reader.at < len(block):
            first = reader.first
            if first & 0x80:
                header = self._entry(reader.integer(7))
            elif first & 0x40:
                header = self._literal(reader, 6)
                self._table.appendleft(header)
                self._table_bytes += _entry_size(header)
                self._evict()
                changes_table = True
            elif first & 0x20:
                raise ValueError("table size update after a header")
            else:
                header = self._literal(reader, 4)
            bytes_left -= _entry_size(header)
            if bytes_left >= 0:
                found.append(header)
            elif bytes_left < -_EXCESS_FACTOR * self._max_list_bytes:
                raise ValueError(f"header list far exceeds {self._max_list_bytes:,} bytes")
        if changes_table:
            self._cached.clear()
        if bytes_left < 0:
            raise HeadersTooLong(f"header list exceeds {self._max_list_bytes:,} bytes")
        headers = tuple(found)
        if not changes_table and len(block) <= _MAX_CACHED_BYTES and len(self._cached) < _MAX_CACHED_BLOCKS:
            self._cached[block] = headers
        return headers

    def _entry(self, index: int) -> Header:
        if not index:
            raise ValueError("invalid header index 0")
        return STATIC_TABLE[index - 1] if index <= len(STATIC_TABLE) else self._table[index - len(STATIC_TABLE) - 1]

    def _literal(self, reader: "_BlockReader", bits: int) -> Header:
        index = reader.integer(bits)
        name = self._entry(index)[0] if index else reader.string()
        return name, reader.string()

    def _resize_table(self, size: int) -> None:
        if size > TABLE_BYTES:
            raise ValueError(f"dynamic table over {TABLE_BYTES} bytes")
        self._max_table_bytes = size
        self._evict()

    def _evict(self) -> None:
        while self._table_bytes > self._max_table_bytes:
            self._table_bytes -= _entry_size(self._table.pop())


class _BlockReader:
    """Reads one header block. Raises IndexError or ValueError if it is invalid."""

    def __init__(self, block: bytes) -> None:
        self._block = block
        self.at = 0

    @property
    def first(self) -> int:
        """The next byte; 0 at the end."""
        return self._block[self.at] if self.at < len(self._block) else 0

    def integer(self, bits: int) -> int:
        limit = (1 << bits) - 1
        value = self._next() & limit
        if value < limit:
            return value
        for shift in range(0, _MAX_SHIFT, 7):
            byte = self._next()
            value += (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("integer too large")

    def string(self) -> str:
        is_huffman = self._block[self.at] & 0x80
        length = self.integer(7)
        raw = self._block[self.at : self.at + length]
        self.at += length
        if len(raw) < length:
            raise ValueError("truncated string")
        return (huffman_decode(raw) if is_huffman else raw).decode("latin-1")

    def _next(self) -> int:
        byte = self._block[self.at]
        self.at += 1
        return byte


def _entry_size(header: Header) -> int:
    return len(header[0]) + len(header[1]) + _ENTRY_BYTES
