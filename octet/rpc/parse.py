"""From bytes to a message, inside the handler: what does not parse is the caller's mistake, and is told so."""

from functools import cache
from typing import Any, TypeVar

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from octet.rpc.fields import has_at_most
from octet.rpc.refusal import Refusal, invalid, malformed

MAX_FIELDS = 10_000
"""Of a message and those within it."""
_SMALL_BYTES = 1 << 16
"""Cannot hold enough fields to hurt."""
_MessageT = TypeVar("_MessageT", bound=Message)
_STRING = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
_BYTES = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES


def parse(raw: bytes, kind: type[_MessageT], max_bytes: int) -> _MessageT:
    """Raises Refusal. Size is checked before anything is read, and the number of fields before any is made: a byte of
    an empty one costs a hundred in memory."""
    if len(raw) > max_bytes:
        raise invalid("request", f"at most {max_bytes:,} bytes", f"{len(raw):,} bytes")
    if len(raw) > _SMALL_BYTES and not has_at_most(MAX_FIELDS, raw, kind.DESCRIPTOR):
        raise invalid("request", f"at most {MAX_FIELDS:,} fields", "more")
    message = kind()
    try:
        message.ParseFromString(raw)
    except DecodeError:
        raise _diagnose(raw, kind) from None
    return message  # type: ignore[no-any-return]  # protobuf has no types of its own


def _diagnose(raw: bytes, kind: type[Message]) -> Refusal:
    """Protobuf does not say what was wrong. Text that is no UTF-8 can be found: the same bytes parse without text."""
    name = kind.DESCRIPTOR.name
    try:
        message = _textless(kind.DESCRIPTOR).FromString(raw)
    except DecodeError:
        return malformed(name, "request", f"not a serialised octet.v1.{name}")
    field = _not_utf8(message, kind.DESCRIPTOR)
    return malformed(name, field or "request", "not valid UTF-8" if field else f"not a serialised octet.v1.{name}")


@cache
def _textless(meant: Any) -> type[Message]:
    """The same message with bytes wherever it has text."""
    pool = descriptor_pool.DescriptorPool()
    for file in _with_imports(meant.file):
        described = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(described)
        for field in (field for message in described.message_type for field in message.field):
            if field.type == _STRING:
                field.type = _BYTES
        pool.Add(described)
    textless: type[Message] = message_factory.GetMessageClass(pool.FindMessageTypeByName(meant.full_name))
    return textless


def _with_imports(file: Any) -> list[Any]:
    """What a file stands on comes before it."""
    files: dict[str, Any] = {}
    for imported in file.dependencies:
        files |= {each.name: each for each in _with_imports(imported)}
    return [*files.values(), file]


def _not_utf8(message: Message, meant: Any, prefix: str = "") -> str | None:
    """The first field of bytes that are no text. Real bytes fields never stop a message from parsing."""
    for field, value in message.ListFields():
        name: str = prefix + field.name
        described = meant.fields_by_name[field.name]
        values = [value] if isinstance(value, bytes | Message) else value if field.is_repeated else []
        for each in values:
            if isinstance(each, Message):
                found = _not_utf8(each, described.message_type, f"{name}.")
                if found is not None:
                    return found
            elif isinstance(each, bytes) and described.type == _STRING and not _is_utf8(each):
                return name
    return None


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
