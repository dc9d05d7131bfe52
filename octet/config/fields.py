"""The fields of an ensemble: descriptions, the digest, differences between two ensembles."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from octet.config.annotations import FieldFlag, OneOf
from octet.config.ensemble import Ensemble, SpecialistConfig

_NoteT = TypeVar("_NoteT")


@dataclasses.dataclass(frozen=True, slots=True)
class SchemaField:
    name: str
    kind: Any  # the type without None and without words; `notes` has the words as OneOf
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

    def has(self, mark: FieldFlag) -> bool:
        return mark in self.notes

    @property
    def is_table(self) -> bool:
        return dataclasses.is_dataclass(self.kind)

    @property
    def item(self) -> type | None:
        """The dataclass, if the field is a tuple of dataclasses, else None."""
        kind: Any = get_args(self.kind)[0] if get_origin(self.kind) is tuple else None
        return kind if dataclasses.is_dataclass(kind) and isinstance(kind, type) else None


@cache
def get_fields(kind: type) -> Mapping[str, SchemaField]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: _describe_field(field, hints[field.name]) for field in dataclasses.fields(kind)}


def _describe_field(field: "dataclasses.Field[Any]", hint: Any) -> SchemaField:
    notes: tuple[object, ...] = ()
    if get_origin(hint) is Annotated:
        hint, *rest = get_args(hint)
        notes = tuple(rest)
    if get_origin(hint) in (Union, UnionType):
        parts = [part for part in get_args(hint) if part is not NoneType]
        words = tuple(OneOf(get_args(part)) for part in parts[1:])  # a number, or one of these words
        kind = parts[0]
        return SchemaField(field.name, kind, len(parts) < len(get_args(hint)), (*notes, *words), field)
    return SchemaField(field.name, hint, False, notes, field)


def file_keys(kind: type) -> Mapping[str, SchemaField]:
    fields = {name: field for name, field in get_fields(kind).items() if not (kind is Ensemble and name == "source")}
    return {**fields, **shared_fields()} if kind is Ensemble else fields


@cache
def shared_fields() -> Mapping[str, SchemaField]:
    """Return the fields of a specialist that may also be set at the top of the file."""
    return {name: field for name, field in get_fields(SpecialistConfig).items() if field.has(FieldFlag.SHARED)}


def ensemble_digest(ensemble: Ensemble) -> str:
    """Return a hex sha256 of everything that affects which specialist answers."""
    canonical = json.dumps(_digested_fields(ensemble), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return sha256(canonical.encode()).hexdigest()


def _digested_fields(table: Any) -> dict[str, Any]:
    kind: type = type(table)
    return {
        name: _digested_value(field, getattr(table, name))
        for name, field in get_fields(kind).items()
        if not field.has(FieldFlag.RUNS)
    }


def _digested_value(field: SchemaField, value: Any) -> Any:
    if field.is_table:
        return None if value is None else _digested_fields(value)
    if field.item is not None:
        items = [_digested_fields(item) for item in value]
        return {item["name"]: item for item in items} if field.has(FieldFlag.BY_NAME) else items
    if isinstance(value, Mapping):
        return dict(value)
    return float(value) if field.kind is float else value


_CLASSIFIER_TEXT = ("describe", "examples")  # a specialist's texts from which an untrained classifier is made


@dataclass(frozen=True, slots=True)
class ConfigChanges:
    """The keys that differ between two configurations, as dotted names such as `specialists.sql.system`."""

    reloadable: tuple[str, ...]
    needs_restart: tuple[str, ...]  # if there are any, no part of the new configuration is applied

    def __bool__(self) -> bool:
        return bool(self.reloadable or self.needs_restart)


def compare_ensembles(old: Ensemble, new: Ensemble) -> ConfigChanges:
    """Return the changes, ignoring the file's name and the order of named entries."""
    found = list(_table_changes(old, new, "", live=False, trained=old.classifier.path is not None))
    return ConfigChanges(
        reloadable=tuple(name for name, live in found if live),
        needs_restart=tuple(name for name, live in found if not live),
    )


def _table_changes(old: Any, new: Any, where: str, live: bool, trained: bool) -> Iterator[tuple[str, bool]]:
    kind: type = type(old)
    for name, field in get_fields(kind).items():
        before, after = getattr(old, name), getattr(new, name)
        if before == after or (kind is Ensemble and name == "source"):
            continue
        here = f"{where}{name}"
        alive = live or field.has(FieldFlag.LIVE) or (trained and name in _CLASSIFIER_TEXT)
        if field.is_table and not field.optional:
            yield from _table_changes(before, after, f"{here}.", alive, trained)
        elif field.has(FieldFlag.BY_NAME):
            yield from _named_changes(before, after, f"{here}.", alive, trained)
        else:
            yield here, alive


def _named_changes(
    old: tuple[Any, ...], new: tuple[Any, ...], where: str, live: bool, trained: bool
) -> Iterator[tuple[str, bool]]:
    """Yield the changed keys in entries of the same name, and the names of added and removed entries."""
    before, after = {item.name: item for item in old}, {item.name: item for item in new}
    for name in before | after:
        if name not in before or name not in after:
            yield f"{where}{name}", live
        else:
            yield from _table_changes(before[name], after[name], f"{where}{name}.", live, trained)
