"""A message as JSON has it: the wire's own field names, every field there."""

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message


def plain(message: Message) -> dict[str, Any]:
    """Fields that can be unset and are, and messages that are not there, are None. Enums are told by their names,
    without their type's and in small letters; bytes in hex. Of a oneof only the chosen field is there."""
    return {
        field.name: _field(message, field)
        for field in message.DESCRIPTOR.fields
        if field.containing_oneof is None or _is_optional(field) or message.HasField(field.name)
    }


def _field(message: Message, field: FieldDescriptor) -> Any:
    value = getattr(message, field.name)
    if _is_map(field):
        return {key: _value(each, field.message_type.fields_by_name["value"]) for key, each in sorted(value.items())}
    if field.is_repeated:
        return [_value(each, field) for each in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _value(value, field)


def _value(value: Any, field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        return plain(value)
    if field.enum_type is not None:
        return _enum_name(value, field)
    return value.hex() if isinstance(value, bytes) else value


def _enum_name(value: int, field: FieldDescriptor) -> str:
    """ERROR_REASON_QUEUE_FULL of ErrorReason is queue_full; a number that has no name here is that number."""
    known = field.enum_type.values_by_number.get(value)
    if known is None:
        return str(value)
    prefix = "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in field.enum_type.name)
    name: str = known.name
    return name.removeprefix(f"{prefix.lstrip('_')}_").lower()


def _is_optional(field: FieldDescriptor) -> bool:
    """`optional` in the file is a oneof of one, made up by the compiler."""
    return bool(field.containing_oneof.name.startswith("_"))


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)
