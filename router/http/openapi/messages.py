"""The shape of a message as `octet.rpc.plain` writes it."""

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from router.http.openapi.shapes import FLAG, NUMBER, TEXT, Shape, maybe, record, several

_NUMBERS = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)
_TEXTS = (FieldDescriptor.CPPTYPE_STRING, FieldDescriptor.CPPTYPE_ENUM)
_INTEGER: Shape = {"type": "integer"}


def message_shape(kind: type[Message]) -> Shape:
    """Every field is there, but of a oneof only the one that is set."""
    return _shape(kind.DESCRIPTOR)


def _shape(message: Descriptor) -> Shape:
    chosen = [field.name for oneof in message.oneofs if not oneof.name.startswith("_") for field in oneof.fields]
    shapes = {field.name: _field(field) for field in message.fields}
    return record(
        {name: shape for name, shape in shapes.items() if name not in chosen},
        {name: shapes[name] for name in chosen},
    )


def _field(field: FieldDescriptor) -> Shape:
    message: Any = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return {"type": "object", "additionalProperties": _value(message.fields_by_name["value"])}
    if field.is_repeated:
        return several(_value(field))
    return maybe(_value(field)) if field.has_presence else _value(field)


def _value(field: FieldDescriptor) -> Shape:
    if field.message_type is not None:
        return _shape(field.message_type)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return FLAG
    if field.cpp_type in _NUMBERS:
        return NUMBER
    return TEXT if field.cpp_type in _TEXTS else _INTEGER
