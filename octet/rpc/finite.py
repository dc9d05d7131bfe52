"""Whether every number of a message is one: a NaN passes comparisons meant to stop it, and no JSON holds it."""

from functools import cache
from math import isfinite
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_REALS = (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT)


class _Look(NamedTuple):
    name: str
    is_repeated: bool
    inside: "tuple[_Look, ...] | None"
    """Of a message; None for a number."""


def is_finite(message: Message) -> bool:
    """With all messages within it that hold real numbers; none of ours holds another of its own kind."""
    return _all_finite(message, _looks(message.DESCRIPTOR))


def _all_finite(message: Any, looks: tuple[_Look, ...]) -> bool:
    for name, is_repeated, inside in looks:
        value = getattr(message, name)
        for each in value if is_repeated else (value,):
            if not (isfinite(each) if inside is None else _all_finite(each, inside)):
                return False
    return True


@cache
def _looks(meant: Any) -> tuple[_Look, ...]:
    """Where real numbers stand, and nowhere else."""
    found = []
    for field in meant.fields:
        if field.type in _REALS:
            found.append(_Look(field.name, field.is_repeated, None))
        elif field.message_type is not None and (inside := _looks(field.message_type)):
            found.append(_Look(field.name, field.is_repeated, inside))
    return tuple(found)
