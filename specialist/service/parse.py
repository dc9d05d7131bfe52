"""From bytes to a message, inside the handler: what does not parse is the caller's mistake, and is told so."""

from functools import cache
from typing import TypeVar

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from octet.v1 import specialist_pb2 as wire
from specialist.service.refusal import Refusal, invalid, malformed

_MessageT = TypeVar("_MessageT", bound=Message)
_STRING = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
_BYTES = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES


def parse(raw: bytes, kind: type[_MessageT], max_bytes: int) -> _MessageT:
    """Raises Refusal. Size is checked before anything is read."""
    if len(raw) > max_bytes:
        raise invalid("request", f"at most {max_bytes:,} bytes", f"{len(raw):,} bytes")
    message = kind()
    try:
        message.ParseFromString(raw)
    except DecodeError:
        raise _diagnose(raw, kind.DESCRIPTOR.name) from None
    return message  # type: ignore[no-any-return]  # protobuf has no types of its own


def _diagnose(raw: bytes, kind: str) -> Refusal:
    """Protobuf does not say what was wrong. Text that is no UTF-8 can be found: the same bytes parse without text."""
    try:
        message = _textless(kind).FromString(raw)
    except DecodeError:
        return malformed(kind, "request", f"not a serialised octet.v1.{kind}")
    field = _not_utf8(message)
    return malformed(kind, field or "request", "not valid UTF-8" if field else f"not a serialised octet.v1.{kind}")


@cache
def _textless(kind: str) -> type[Message]:
    """The message of that name with bytes wherever it has text."""
    file = descriptor_pb2.FileDescriptorProto()
    wire.DESCRIPTOR.CopyToProto(file)
    for message in file.message_type:
        for field in message.field:
            if field.type == _STRING:
                field.type = _BYTES
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    textless: type[Message] = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{kind}"))
    return textless


def _not_utf8(message: Message, prefix: str = "") -> str | None:
    """The first field of bytes that are no text. Real bytes fields never stop a message from parsing."""
    described = wire.DESCRIPTOR.message_types_by_name[message.DESCRIPTOR.name].fields_by_name
    for field, value in message.ListFields():
        name: str = prefix + field.name
        values = [value] if isinstance(value, bytes | Message) else value if field.is_repeated else []
        for each in values:
            if isinstance(each, Message):
                found = _not_utf8(each, f"{name}.")
                if found is not None:
                    return found
            elif isinstance(each, bytes) and described[field.name].type == _STRING and not _is_utf8(each):
                return name
    return None


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
