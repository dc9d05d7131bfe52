"""Random protobuf messages."""

from functools import cache
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

HOSTILE = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter("unspecified".__ne__) | st.sampled_from(
    ["\x1b[31m", "\x9b2J", "a\r\nb", "\u202eright", "\x07", "wide 漢字", "e\u0301"]
)
_INT64 = st.integers(-(2**63), 2**63 - 1)
_BY_TYPE: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: HOSTILE,
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=4),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False, allow_infinity=False) | st.floats(0, 100),
    FieldDescriptor.TYPE_FLOAT: st.floats(allow_nan=False, allow_infinity=False, width=32),
    FieldDescriptor.TYPE_INT64: _INT64 | st.integers(0, 1000),
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
}


def messages(kind: type[Message], most: int = 2) -> st.SearchStrategy[Any]:
    """Draw messages of this type whose lists have at most `most` items."""
    return _messages(kind.DESCRIPTOR, most)


def whole(kind: type[Message]) -> st.SearchStrategy[Any]:
    """Draw messages with every field set and one item in every list."""
    return _whole(kind.DESCRIPTOR)


def _whole(descriptor: Any) -> st.SearchStrategy[Any]:
    fields = {field.name: _whole_field(field) for field in descriptor.fields if not _is_second_choice(field)}
    return st.fixed_dictionaries(fields).map(lambda values: GetMessageClass(descriptor)(**values))


def _is_second_choice(field: FieldDescriptor) -> bool:
    """Return whether the field belongs to a oneof but is not its first field. Only the first field of a oneof is
    set."""
    group = field.containing_oneof
    return group is not None and group.fields[0] is not field


def _whole_field(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    value = _whole(field.message_type) if field.message_type is not None else _value(field, 1)
    return st.tuples(value).map(list) if field.is_repeated else value


@cache
def _messages(descriptor: Any, most: int) -> st.SearchStrategy[Any]:
    fields = {field.name: _field(field, most) for field in descriptor.fields}
    drawn = st.fixed_dictionaries({}, optional=fields)
    return drawn.map(lambda values: GetMessageClass(descriptor)(**values))


def _field(field: FieldDescriptor, most: int) -> st.SearchStrategy[Any]:
    value = _value(field, most)
    return st.lists(value, max_size=most) if field.is_repeated else value


def _value(field: FieldDescriptor, most: int) -> st.SearchStrategy[Any]:
    if field.message_type is not None:
        return _messages(field.message_type, most)
    if field.enum_type is not None:
        return st.sampled_from(sorted(field.enum_type.values_by_number))
    return _BY_TYPE[field.type]
