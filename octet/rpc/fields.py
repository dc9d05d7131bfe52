"""How many fields a serialised message has, counted on its bytes."""

from typing import Any

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_LONGEST = 10
"""Bytes of a varint."""
_FIXED = {_FIXED64: 8, _FIXED32: 4}


def has_at_most(most: int, raw: bytes, meant: Any) -> bool:
    """With the fields of the messages within it; `meant` is the message's descriptor. Looks at no more than `most`.

    True as well for what cannot be read: parsing it will say so, and stops there.
    """
    return _left(most, memoryview(raw), meant) >= 0


def _left(budget: int, raw: memoryview, meant: Any) -> int:
    """The budget less the fields; below 0 when there are more."""
    at, end = 0, len(raw)
    while at < end and budget >= 0:
        budget -= 1
        tag, at = _varint(raw, at)
        kind = tag & 7
        if kind == _VARINT:
            _, at = _varint(raw, at)
        elif kind == _LENGTH:
            size, at = _varint(raw, at)
            field = meant.fields_by_number.get(tag >> 3)
            if field is not None and field.message_type is not None:
                budget = _left(budget, raw[at : at + size], field.message_type)
            at += size
        elif kind in _FIXED:
            at += _FIXED[kind]
        else:
            return budget
    return budget


def _varint(raw: memoryview, at: int) -> tuple[int, int]:
    """The number, and where it ends; the end of all bytes for one that does not."""
    value = 0
    for place, byte in enumerate(raw[at : at + _LONGEST]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    return value, len(raw)
