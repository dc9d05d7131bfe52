"""A message as JSON has it: the wire's own field names, every field there."""

from collections.abc import Callable
from math import isfinite
from typing import Any

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

_Read = Callable[[Message, str], Any]
_Plan = tuple[tuple[str, _Read], ...]
_Say = Callable[[Any], Any]
_PLANS: dict[type[Message], tuple[_Plan, _Plan]] = {}
"""By the message's type, of which there are as many as the files name: what is always there, and what is only where
it was chosen."""


def plain(message: Message) -> dict[str, Any]:
    """Fields that can be unset and are, and messages that are not there, are None; so are numbers that JSON does not
    have: infinite, or none. Enums are told by their names, without their type's and in small letters; bytes in hex.
    Fields of a oneof that are not the chosen one are left out."""
    kind = type(message)
    always, chosen = _PLANS.get(kind) or _planned(kind)
    found = {name: read(message, name) for name, read in always}
    for name, read in chosen:
        if message.HasField(name):
            found[name] = read(message, name)
    return found


def _planned(kind: type[Message]) -> tuple[_Plan, _Plan]:
    fields = kind.DESCRIPTOR.fields
    always = tuple((field.name, _reader(field)) for field in fields if not _is_chosen(field))
    chosen = tuple((field.name, _reader(field)) for field in fields if _is_chosen(field))
    _PLANS[kind] = always, chosen
    return always, chosen


def _reader(field: FieldDescriptor) -> _Read:
    if _is_map(field):
        say = _sayer(field.message_type.fields_by_name["value"])
        return lambda message, name: {key: say(each) for key, each in sorted(getattr(message, name).items())}
    say = _sayer(field)
    if field.is_repeated:
        if say is _as_it_is:
            return lambda message, name: list(getattr(message, name))
        return lambda message, name: [say(each) for each in getattr(message, name)]
    if field.has_presence:
        return lambda message, name: say(getattr(message, name)) if message.HasField(name) else None
    if say is _as_it_is:
        return getattr
    return lambda message, name: say(getattr(message, name))


def _sayer(field: FieldDescriptor) -> _Say:
    if field.message_type is not None:
        return plain
    if field.enum_type is not None:
        return _enum_sayer(field.enum_type)
    if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        return _number
    return bytes.hex if field.type == FieldDescriptor.TYPE_BYTES else _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _number(value: float) -> float | None:
    return value if isfinite(value) else None


def _enum_sayer(kind: EnumDescriptor) -> _Say:
    """ERROR_REASON_QUEUE_FULL of ErrorReason is queue_full; a number that has no name here is that number."""
    letters = "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in kind.name)
    prefix = f"{letters.lstrip('_')}_"
    names = {value.number: value.name.removeprefix(prefix).lower() for value in kind.values}
    return lambda number: names.get(number) or str(number)


def _is_chosen(field: FieldDescriptor) -> bool:
    """Of a oneof; `optional` in the file is a oneof of one, made up by the compiler."""
    within = field.containing_oneof
    return within is not None and not within.name.startswith("_")


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)
