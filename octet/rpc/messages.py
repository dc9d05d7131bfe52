"""Protobuf messages by descriptor: limits for untrusted bytes, diagnosis of malformed bytes, conversion to JSON."""

from collections.abc import Callable, Mapping
from functools import cache
from math import isfinite
from typing import Any, TypeVar

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from octet.rpc.refusal import Refusal, malformed_request

MAX_FIELDS = 10_000  # fields of a message, including those of nested messages
_STRING = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
_BYTES = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BYTES = 10
_MessageT = TypeVar("_MessageT", bound=Message)


def copy_message(message: _MessageT) -> _MessageT:
    copy: _MessageT = type(message)()
    copy.CopyFrom(message)
    return copy


def has_at_most_fields(most: int, raw: bytes, descriptor: Any) -> bool:
    """Whether there are at most `most` fields, including nested ones. Malformed bytes pass: parsing reports them."""
    return _fields_left(most, memoryview(raw), descriptor) >= 0


def _fields_left(budget: int, raw: memoryview, descriptor: Any) -> int:
    """Return the budget minus the number of fields. Counting stops once the result is negative."""
    at, end = 0, len(raw)
    while at < end and budget >= 0:
        budget -= 1
        tag, at = _read_varint(raw, at)
        wire_type = tag & 7
        if wire_type == _VARINT:
            _, at = _read_varint(raw, at)
        elif wire_type == _LENGTH:
            size, at = _read_varint(raw, at)
            field = descriptor.fields_by_number.get(tag >> 3)
            if field is not None and field.message_type is not None:
                budget = _fields_left(budget, raw[at : at + size], field.message_type)
            at += size
        elif wire_type in _FIXED_SIZES:
            at += _FIXED_SIZES[wire_type]
        else:
            return budget
    return budget


def _read_varint(raw: memoryview, at: int) -> tuple[int, int]:
    """Return the number at position `at` and the position after it. An unterminated number extends to the end."""
    value = 0
    for index, byte in enumerate(raw[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    return value, len(raw)


def diagnose_malformed(raw: bytes, kind: type[Message]) -> Refusal:
    """Return why protobuf cannot parse the bytes. If they can be parsed once all string fields are declared as bytes,
    the reason is invalid UTF-8."""
    name = kind.DESCRIPTOR.name
    problem = f"not a serialised octet.v1.{name}"
    try:
        message = _without_text(kind.DESCRIPTOR).FromString(raw)
    except DecodeError:
        return malformed_request(name, "request", problem)
    field = _first_invalid_utf8(message, kind.DESCRIPTOR)
    return malformed_request(name, field or "request", "not valid UTF-8" if field else problem)


@cache
def _without_text(descriptor: Any) -> type[Message]:
    """Create the same message type with bytes fields instead of string fields."""
    pool = descriptor_pool.DescriptorPool()
    for file in _with_dependencies(descriptor.file):
        copy = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(copy)
        for field in (field for message in copy.message_type for field in message.field):
            if field.type == _STRING:
                field.type = _BYTES
        pool.Add(copy)
    kind: type[Message] = message_factory.GetMessageClass(pool.FindMessageTypeByName(descriptor.full_name))
    return kind


def _with_dependencies(file: Any) -> list[Any]:
    files: dict[str, Any] = {}
    for dependency in file.dependencies:
        files |= {each.name: each for each in _with_dependencies(dependency)}
    return [*files.values(), file]


def _first_invalid_utf8(message: Message, descriptor: Any, prefix: str = "") -> str | None:
    """Return the path of the first string field that is not UTF-8, ignoring fields that are declared as bytes."""
    for field, value in message.ListFields():
        name: str = prefix + field.name
        declared = descriptor.fields_by_name[field.name]
        values = [value] if isinstance(value, bytes | Message) else value if field.is_repeated else []
        for each in values:
            if isinstance(each, Message):
                found = _first_invalid_utf8(each, declared.message_type, f"{name}.")
                if found is not None:
                    return found
            elif isinstance(each, bytes) and declared.type == _STRING and not _is_utf8(each):
                return name
    return None


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


_Read = Callable[[Message, str], Any]
_Plan = tuple[tuple[str, _Read], ...]
_Convert = Callable[[Any], Any]
_PLANS: dict[type[Message], tuple[_Plan, _Plan]] = {}
"""Per message type: fields that are always present, and fields of a oneof."""


def message_to_json(message: Message) -> dict[str, Any]:
    """Convert a message. Unset optional fields, absent messages and non-finite numbers become None. Enums become their
    value's name in lower case, without the type's prefix. Bytes become hex. Unset fields of a oneof are left out."""
    kind = type(message)
    always, in_oneof = _PLANS.get(kind) or _make_plan(kind)
    content = {name: read(message, name) for name, read in always}
    for name, read in in_oneof:
        if message.HasField(name):
            content[name] = read(message, name)
    return content


def _make_plan(kind: type[Message]) -> tuple[_Plan, _Plan]:
    fields = kind.DESCRIPTOR.fields
    always = tuple((field.name, _reader(field)) for field in fields if not is_in_oneof(field))
    in_oneof = tuple((field.name, _reader(field)) for field in fields if is_in_oneof(field))
    _PLANS[kind] = always, in_oneof
    return always, in_oneof


def _reader(field: FieldDescriptor) -> _Read:
    if _is_map(field):
        convert = _converter(field.message_type.fields_by_name["value"])
        return lambda message, name: {key: convert(each) for key, each in sorted(getattr(message, name).items())}
    convert = _converter(field)
    if field.is_repeated:
        if convert is _identity:
            return lambda message, name: list(getattr(message, name))
        return lambda message, name: [convert(each) for each in getattr(message, name)]
    if field.has_presence:
        return lambda message, name: convert(getattr(message, name)) if message.HasField(name) else None
    if convert is _identity:
        return getattr
    return lambda message, name: convert(getattr(message, name))


def _converter(field: FieldDescriptor) -> _Convert:
    if field.message_type is not None:
        return message_to_json
    if field.enum_type is not None:
        return enum_labels(field.enum_type).__getitem__
    if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        return _finite_or_none
    return bytes.hex if field.type == FieldDescriptor.TYPE_BYTES else _identity


def _identity(value: Any) -> Any:
    return value


def _finite_or_none(value: float) -> float | None:
    return value if isfinite(value) else None


class _EnumLabels(dict[int, str]):
    def __missing__(self, number: int) -> str:
        return str(number)


def enum_labels(kind: EnumDescriptor) -> Mapping[int, str]:
    """Return labels by number, such as queue_full. An unknown number, from a newer peer, has its digits as label."""
    snake_case = "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in kind.name)
    prefix = f"{snake_case.lstrip('_')}_"
    return _EnumLabels({value.number: value.name.removeprefix(prefix).lower() for value in kind.values})


def is_in_oneof(field: FieldDescriptor) -> bool:
    """Whether the field is in a oneof of the proto file. The oneof that protoc adds to an `optional` does not count."""
    oneof = field.containing_oneof
    return oneof is not None and not oneof.name.startswith("_")


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)
