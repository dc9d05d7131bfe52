"""Spans as the bytes of an ExportTraceServiceRequest. Written out by hand: messages in between would cost ten times as
much, and whoever serves requests shares the interpreter with whoever writes this."""

import struct
from collections.abc import Iterable, Mapping

from octet.telemetry.span import Span, Value

_SMALL = tuple(
    bytes((number,)) if number < 128 else bytes((number & 127 | 128, number >> 7)) for number in range(1 << 11)
)
_KEPT = 2048
_KINDS = {"internal": b"\x30\x01", "server": b"\x30\x02", "client": b"\x30\x03"}
_TIMES = struct.Struct("<BQBQ")
_DOUBLE = struct.Struct("<Bd")
_START, _END, _DOUBLE_VALUE = 0x39, 0x41, 0x21
_TRUE, _FALSE = b"\x10\x01", b"\x10\x00"
_FLAGS = b"\x85\x01"
_LOCAL, _REMOTE = (_FLAGS + struct.pack("<I", flags) for flags in (0x101, 0x301))
"""Sampled; whether the parent is another process's is known; it is."""
_ERROR = b"\x18\x02"
_pairs: dict[object, bytes] = {}


def request_of(spans: Iterable[Span], resource: bytes, scope: bytes) -> bytes:
    """`resource` and `scope` as below."""
    return _field(
        b"\x0a", resource + _field(b"\x12", scope + b"".join([_field(b"\x12", _span(each)) for each in spans]))
    )


def resource_of(attributes: Mapping[str, Value]) -> bytes:
    """Who sends them."""
    return _field(b"\x0a", _attributes(b"\x0a", attributes))


def scope_of(name: str, version: str) -> bytes:
    """What wrote them."""
    return _field(b"\x0a", _text(b"\x0a", name) + _text(b"\x12", version))


def _span(span: Span) -> bytes:
    return b"".join(
        (
            b"\x0a\x10",
            bytes.fromhex(span.trace_id),
            b"\x12\x08",
            bytes.fromhex(span.span_id),
            _text(b"\x1a", span.state) if span.state else b"",
            b"\x22\x08" + bytes.fromhex(span.parent_id) if span.parent_id else b"",
            _text(b"\x2a", span.name),
            _KINDS[span.kind],
            _TIMES.pack(_START, span.start, _END, span.end),
            _attributes(b"\x4a", span.attributes),
            b"" if span.error is None else _field(b"\x7a", _text(b"\x12", span.error) + _ERROR),
            _REMOTE if span.is_remote else _LOCAL,
        )
    )


def _attributes(tag: bytes, attributes: Mapping[str, Value]) -> bytes:
    return b"".join([_attribute(tag, name, value) for name, value in attributes.items()])


def _attribute(tag: bytes, name: str, value: Value) -> bytes:
    """Most of them come again and again, but for measures."""
    key = (tag, name, value.__class__, value)
    found = _pairs.get(key)
    if found is not None:
        return found
    found = _field(tag, _text(b"\x0a", name) + _field(b"\x12", _value(value)))
    if not isinstance(value, float):
        if len(_pairs) >= _KEPT:
            _pairs.clear()
        _pairs[key] = found
    return found


def _value(value: Value) -> bytes:
    if isinstance(value, str):
        return _text(b"\x0a", value)
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    if isinstance(value, int):
        return b"\x18" + _varint(value & (1 << 64) - 1)
    if isinstance(value, float):
        return _DOUBLE.pack(_DOUBLE_VALUE, value)
    return _field(b"\x2a", b"".join([_field(b"\x0a", _value(each)) for each in value]))


def _field(tag: bytes, body: bytes) -> bytes:
    return tag + _varint(len(body)) + body


def _text(tag: bytes, text: str) -> bytes:
    """What UTF-8 cannot say is replaced: one such name must not cost a whole batch."""
    return _field(tag, text.encode(errors="replace"))


def _varint(number: int) -> bytes:
    if number < len(_SMALL):
        return _SMALL[number]
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)
