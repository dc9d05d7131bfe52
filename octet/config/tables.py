"""Tables into dataclasses, by the annotations of their fields: unknown, missing and wrong keys, all of them."""

from collections.abc import Callable, Mapping
from typing import Any

from octet.config.fields import Field, fields_of, keys_of
from octet.config.kinds import NAME, Mark, Short
from octet.config.sheet import Place, Sheet
from octet.config.tree import Entry, Items, Node, Scalar, Table, shown
from octet.config.values import Values, Wrong, check_count, check_name

Presets = Callable[[type, str], Mapping[str, Any]]
"""What a dataclass of this kind and name starts from, instead of its own defaults."""

_NO_MERGING = "nothing is merged here, but defaults for every specialist may stand at the top"


class Tables:
    def __init__(self, sheet: Sheet, values: Values, presets: Presets) -> None:
        self._sheet = sheet
        self._values = values
        self._presets = presets
        self.built: list[tuple[Place, Any]] = []
        """Every instance and where it stands, the inner before the outer."""

    def read(self, kind: type, node: Node, place: Place, name: str | None = None) -> Any | None:
        """An instance, with defaults where something was wrong; None where what is wrong has no default.

        `name` is the key that the table stands under, where that key is its name.
        """
        found = self.keys(kind, node, place, name)
        if found is None:
            return None
        own = {} if name is None else {"name": name}
        values = {**self._presets(kind, name or ""), **own, **found}
        missing = [key for key, field in fields_of(kind).items() if field.required and key not in values]
        for key in missing:
            if self._sheet.sound(*place, key):
                self._sheet.wrong((*place, key), "is missing")
        if missing:
            return None
        built = kind(**values)
        self.built.append((place, built))
        return built

    def keys(self, kind: type, node: Node, place: Place, name: str | None = None) -> dict[str, Any] | None:
        """Every key that is right, read; None where there is no table."""
        if isinstance(node, Scalar) and node.is_null:
            return {}
        if not isinstance(node, Table):
            self._sheet.wrong(place, f"must be a table of keys and values, got {shown(node)}", node.line)
            return None
        known = {key: field for key, field in keys_of(kind).items() if not (name is not None and key == "name")}
        found: dict[str, Any] = {}
        for entry in node.entries:
            field = known.get(entry.key)
            if field is None:
                self._unknown(entry, list(known), place)
            else:
                self._field(field, entry, (*place, entry.key), found)
        return found

    def _unknown(self, entry: Entry, known: list[str], place: Place) -> None:
        here = (*place, entry.key)
        self._sheet.stands(here, entry.line)
        if entry.key == "<<":
            self._sheet.wrong(here, f"is no known key: {_NO_MERGING}")
        else:
            self._sheet.unknown(here, "is no known key", entry.key, known)

    def _field(self, field: Field, entry: Entry, place: Place, found: dict[str, Any]) -> None:
        self._sheet.stands(place, entry.line)
        try:
            value = self._value(field, entry.value, place)
        except Wrong as wrong:
            empty = isinstance(entry.value, Scalar) and entry.value.is_null
            self._sheet.wrong(place, str(wrong), entry.line if empty else entry.value.line)
        else:
            if value is not None or field.optional:
                found[field.name] = value

    def _value(self, field: Field, node: Node, place: Place) -> Any:
        if field.item is not None:
            return self._named(field, node, place) if field.has(Mark.BY_NAME) else self._listed(field, node, place)
        if field.is_table:
            if field.optional and isinstance(node, Scalar) and node.is_null:
                return None
            return self.read(field.kind, node, place)
        return self._values.read(field, node, place)

    def _named(self, field: Field, node: Node, place: Place) -> tuple[Any, ...]:
        if isinstance(node, Scalar) and node.is_null:
            node = Table((), node.line)
        if not isinstance(node, Table):
            raise Wrong("a table of names, each with its own keys below it", node)
        check_count(field, len(node.entries))
        read = [self._entry(field, entry, (*place, entry.key)) for entry in node.entries]
        return tuple(item for item in read if item is not None)

    def _entry(self, field: Field, entry: Entry, place: Place) -> Any | None:
        self._sheet.stands(place, entry.line)
        try:
            check_name(entry.key, NAME, entry.line)
        except Wrong as wrong:
            self._sheet.wrong(place, str(wrong))
        short = field.note(Short)
        value = entry.value
        if short is not None and isinstance(value, Scalar) and not value.is_null:
            value = Table((Entry(short.field, value.line, value),), value.line)
        return self.read(field.item or object, value, place, name=entry.key)

    def _listed(self, field: Field, node: Node, place: Place) -> tuple[Any, ...]:
        if isinstance(node, Scalar) and node.is_null:
            return ()
        if not isinstance(node, Items):
            raise Wrong("a list, each item a table that starts with `- `", node)
        check_count(field, len(node.items))
        read = []
        for index, item in enumerate(node.items):
            self._sheet.stands((*place, index), item.line)
            read.append(self.read(field.item or object, item, (*place, index)))
        return tuple(item for item in read if item is not None)
