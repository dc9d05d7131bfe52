"""The shape of a message of the wire as JSON has it: what `octet.rpc.plain` makes of it."""

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from router.http.openapi.shapes import FLAG, NUMBER, TEXT, Shape, maybe, named, record, several

_NUMBERS = (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT)


def schemas_of(*kinds: Descriptor) -> dict[str, Shape]:
    """Of these and of all that they hold, by the names of their messages. Neither oneofs nor maps are among them."""
    found: dict[str, Shape] = {}
    for kind in kinds:
        _add(kind, found)
    return found


def _add(kind: Descriptor, found: dict[str, Shape]) -> None:
    if kind.name in found:
        return
    found[kind.name] = record({field.name: _field(field) for field in kind.fields})
    for field in kind.fields:
        if field.message_type is not None:
            _add(field.message_type, found)


def _field(field: FieldDescriptor) -> Shape:
    if field.is_repeated:
        return several(_value(field))
    may_be_unset = field.has_presence or field.type in _NUMBERS
    return maybe(_value(field)) if may_be_unset else _value(field)


def _value(field: FieldDescriptor) -> Shape:
    if field.message_type is not None:
        return named(field.message_type.name)
    if field.type in _NUMBERS:
        return NUMBER
    if field.type == FieldDescriptor.TYPE_BOOL:
        return FLAG
    is_text = field.enum_type is not None or field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
    return TEXT if is_text else {"type": "integer"}
