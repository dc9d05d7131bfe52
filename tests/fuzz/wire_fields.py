"""Protobuf messages whose fields hold unusual values of their type."""

from collections.abc import Callable
from math import inf, nan
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

_TEXTS = ("", "a", "\0", "\x1b[31m", "\u202e", "../..", "x" * 300, "x" * 70_000, "[" * 2000, "{" * 2000, "user", "\n")
_INT32 = (0, 1, -1, 2, 2**31 - 1, -(2**31))
_INT64 = (*_INT32, 2**53, 2**63 - 1, -(2**63))
_UINT32 = (0, 1, 2, 2**31, 2**32 - 1)
_REALS = (0.0, -0.0, 1.0, -1.0, nan, inf, -inf, 1e308, -1e308, 1e-320, 0.5)
_VALUES: dict[int, tuple[Any, ...]] = {
    FieldDescriptor.TYPE_STRING: _TEXTS,
    FieldDescriptor.TYPE_BYTES: (b"", b"\0", b"\xff" * 40, b"x" * 70_000),
    FieldDescriptor.TYPE_BOOL: (True, False),
    FieldDescriptor.TYPE_DOUBLE: _REALS,
    FieldDescriptor.TYPE_FLOAT: (0.0, 1.0, -1.0, nan, inf, -inf, 3e38),
    FieldDescriptor.TYPE_INT32: _INT32,
    FieldDescriptor.TYPE_INT64: _INT64,
    FieldDescriptor.TYPE_SINT64: _INT64,
    FieldDescriptor.TYPE_UINT32: _UINT32,
    FieldDescriptor.TYPE_UINT64: (*_UINT32, 2**64 - 1),
    FieldDescriptor.TYPE_FIXED64: (*_UINT32, 2**64 - 1),
    FieldDescriptor.TYPE_ENUM: (0, 1, 2, 99, -1, 2**31 - 1),
}


def field_of(kind: type[Message]) -> Callable[[bytes, Random], bytes]:
    """Return a mutation that sets a random field of a message, at any depth. Input that does not parse as a `kind`
    message is left unchanged."""

    def changed(raw: bytes, random: Random) -> bytes:
        message = kind()
        try:
            message.ParseFromString(raw)
        except DecodeError:
            return raw
        _set_one(message, random, depth=0)
        return bytes(message.SerializeToString())

    return changed


def _set_one(message: Any, random: Random, depth: int) -> None:
    fields = list(message.DESCRIPTOR.fields)
    if not fields:
        return
    field = random.choice(fields)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        _set_entry(getattr(message, field.name), random)
    elif field.message_type is not None:
        _set_inner(message, field, random, depth)
    elif field.is_repeated:
        times = random.choice((1, 1, 2, 40, 2000))
        getattr(message, field.name).extend([random.choice(_VALUES[field.type])] * times)
    else:
        setattr(message, field.name, random.choice(_VALUES[field.type]))


def _set_inner(message: Any, field: Any, random: Random, depth: int) -> None:
    holder = getattr(message, field.name)
    if not field.is_repeated:
        if random.random() < 0.1:
            message.ClearField(field.name)
        elif depth < 4:
            holder.SetInParent()
            _set_one(holder, random, depth + 1)
        return
    inner = random.choice(list(holder)) if holder and random.random() < 0.7 else holder.add()
    if depth < 4:
        _set_one(inner, random, depth + 1)
    if random.random() < 0.1:
        holder.extend([inner] * random.choice((2, 50, 2000)))


def _set_entry(entries: Any, random: Random) -> None:
    try:
        entries[random.choice(_TEXTS)] = random.choice(_TEXTS)
    except (TypeError, ValueError):
        entries.clear()
