"""Shapes of the wire's messages as JSON has them: what `octet.rpc.plain` writes."""

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from router.http.openapi.shapes import FLAG, NUMBER, TEXT, Shape, maybe, named, record, several

_INTEGER: Shape = {"type": "integer"}
_KINDS = {
    FieldDescriptor.CPPTYPE_STRING: TEXT,
    FieldDescriptor.CPPTYPE_BOOL: FLAG,
    FieldDescriptor.CPPTYPE_DOUBLE: NUMBER,
    FieldDescriptor.CPPTYPE_FLOAT: NUMBER,
    FieldDescriptor.CPPTYPE_ENUM: TEXT,
}


def message_shape(message: Descriptor) -> Shape:
    """Messages within it are named, and must be in the document under their names."""
    return record({field.name: _field(field) for field in message.fields})


def _field(field: FieldDescriptor) -> Shape:
    shape = named(field.message_type.name) if field.message_type is not None else _KINDS.get(field.cpp_type, _INTEGER)
    if field.is_repeated:
        return several(shape)
    return maybe(shape) if field.has_presence else shape
