"""A dataclass of the configuration as a reader sees it: each field with its type, default and annotations."""

import dataclasses
from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from octet.config.ensemble import Ensemble, SpecialistConfig
from octet.config.kinds import Mark

_NoteT = TypeVar("_NoteT")


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: Any
    """Without None, which `optional` tells."""
    optional: bool
    notes: tuple[object, ...]
    _field: "dataclasses.Field[Any]"

    @property
    def required(self) -> bool:
        return self._field.default is dataclasses.MISSING and self._field.default_factory is dataclasses.MISSING

    def default(self) -> Any:
        factory = self._field.default_factory
        return self._field.default if factory is dataclasses.MISSING else factory()

    def note(self, of: type[_NoteT]) -> _NoteT | None:
        return next((note for note in self.notes if isinstance(note, of)), None)

    def has(self, mark: Mark) -> bool:
        return mark in self.notes

    @property
    def is_table(self) -> bool:
        return dataclasses.is_dataclass(self.kind)

    @property
    def item(self) -> type | None:
        """Of a tuple of dataclasses: the dataclass."""
        kind: Any = get_args(self.kind)[0] if get_origin(self.kind) is tuple else None
        return kind if dataclasses.is_dataclass(kind) and isinstance(kind, type) else None


@cache
def fields_of(kind: type) -> Mapping[str, Field]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: _described(field, hints[field.name]) for field in dataclasses.fields(kind)}


def _described(field: "dataclasses.Field[Any]", hint: Any) -> Field:
    notes: tuple[object, ...] = ()
    if get_origin(hint) is Annotated:
        hint, *rest = get_args(hint)
        notes = tuple(rest)
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (part for part in get_args(hint) if part is not NoneType)
        return Field(field.name, hint, True, notes, field)
    return Field(field.name, hint, False, notes, field)


def keys_of(kind: type) -> Mapping[str, Field]:
    """What may stand in the file for it."""
    fields = {name: field for name, field in fields_of(kind).items() if not (kind is Ensemble and name == "source")}
    return {**fields, **shared_fields()} if kind is Ensemble else fields


@cache
def shared_fields() -> Mapping[str, Field]:
    """Of a specialist: what may stand once, at the top."""
    return {name: field for name, field in fields_of(SpecialistConfig).items() if field.has(Mark.SHARED)}
