"""Frozen records that mirror protobuf messages field by field."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from operator import attrgetter
from types import MappingProxyType, NoneType
from typing import Any, ClassVar, Self, dataclass_transform, get_args

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor

from octet.rpc.messages import enum_labels

_Read = Callable[[Any], Any]
_PLANS: dict[type, tuple[tuple[str, _Read], ...]] = {}


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
@dataclass(frozen=True)
class WireRecord:
    """Base class of frozen dataclasses that are made from messages. A subclass declares fields with the names of the
    message's fields. Repeated fields become tuples, enums become labels, and nested messages become the record type in
    the annotation. An unset field becomes None if its annotation allows None."""

    READERS: ClassVar[Mapping[str, _Read]] = MappingProxyType({})  # functions that read fields from the message
    ALTERNATIVES: ClassVar[frozenset[str]] = frozenset()  # fields of a oneof

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    @classmethod
    def from_wire(cls, message: Any) -> Self:
        plan = _PLANS.get(cls)
        if plan is None:
            declared = message.DESCRIPTOR.fields_by_name
            readers = cls.READERS
            plan = tuple((e.name, readers.get(e.name) or _reader(declared[e.name], e.type)) for e in fields(cls))
            _PLANS[cls] = plan
        return cls(**{name: read(message) for name, read in plan})

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON, without hidden fields such as the message itself, and without unset oneof fields."""
        content = {each.name: _to_json(getattr(self, each.name)) for each in fields(self) if each.repr}
        for name in self.ALTERNATIVES:
            if content[name] is None:
                del content[name]
        return content


def enum_label(kind: EnumDescriptor, number: int) -> str:
    """Return the name of an enum's value in lower case without its prefix; empty for the unspecified value."""
    return enum_labels(kind)[number] if number else ""


def _reader(declared: FieldDescriptor, annotation: Any) -> _Read:
    name: str = declared.name
    named = (annotation, *get_args(annotation))  # `Record`, `Record | None` or `tuple[Record, ...]`
    record = next((each for each in named if isinstance(each, type) and issubclass(each, WireRecord)), None)
    convert: _Read | None = None if record is None else record.from_wire
    if declared.enum_type is not None:
        labels = {**enum_labels(declared.enum_type), 0: ""}
        convert = lambda number: labels.get(number, str(number))  # noqa: E731
    if declared.is_repeated:
        return lambda message: tuple(map(convert, getattr(message, name)) if convert else getattr(message, name))
    if declared.has_presence and NoneType in get_args(annotation):
        read = _reader_of_value(name, convert)
        return lambda message: read(message) if message.HasField(name) else None
    return _reader_of_value(name, convert)


def _reader_of_value(name: str, convert: _Read | None) -> _Read:
    return attrgetter(name) if convert is None else lambda message: convert(getattr(message, name))


def _to_json(value: Any) -> Any:
    if isinstance(value, WireRecord):
        return value.to_dict()
    if isinstance(value, datetime):
        return value.isoformat()
    return [_to_json(each) for each in value] if isinstance(value, tuple) else value
