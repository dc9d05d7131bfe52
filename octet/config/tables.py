"""Converts YAML mappings to schema dataclasses."""

from collections.abc import Callable, Mapping
from typing import Any

from octet.config.annotations import NAME, FieldFlag, Shorthand
from octet.config.fields import SchemaField, fields_of, file_keys
from octet.config.values import InvalidValue, KeyIndex, KeyPath, ValueReader, check_count, check_name
from octet.config.yaml_tree import YamlEntry, YamlList, YamlNode, YamlScalar, YamlTable, describe_node

Presets = Callable[[type, str], Mapping[str, Any]]
"""Returns values that replace the defaults of a dataclass of this kind and name."""

_NO_MERGING = "YAML merging is not supported; put defaults for every specialist at the top"


class TableReader:
    def __init__(self, index: KeyIndex, values: ValueReader, presets: Presets) -> None:
        self._index = index
        self._values = values
        self._presets = presets
        self.built: list[tuple[KeyPath, Any]] = []  # every instance with its key path, inner instances first

    def read(self, kind: type, node: YamlNode, place: KeyPath, name: str | None = None) -> Any | None:
        """Return an instance, with defaults for invalid values; None if an invalid value has no default. `name` is the
        mapping's key, if that key is also its name."""
        found = self.keys(kind, node, place, name)
        if found is None:
            return None
        own = {} if name is None else {"name": name}
        values = {**self._presets(kind, name or ""), **own, **found}
        missing = [key for key, field in fields_of(kind).items() if field.required and key not in values]
        for key in missing:
            if self._index.is_valid(*place, key):
                self._index.add_problem((*place, key), "is missing")
        if missing:
            return None
        built = kind(**values)
        self.built.append((place, built))
        return built

    def keys(self, kind: type, node: YamlNode, place: KeyPath, name: str | None = None) -> dict[str, Any] | None:
        """Return the values of all valid keys; None if the node is not a mapping."""
        if isinstance(node, YamlScalar) and node.is_null:
            return {}
        if not isinstance(node, YamlTable):
            self._index.add_problem(place, f"must be a mapping of keys to values, got {describe_node(node)}", node.line)
            return None
        known = {key: field for key, field in file_keys(kind).items() if not (name is not None and key == "name")}
        found: dict[str, Any] = {}
        for entry in node.entries:
            here = (*place, entry.key)
            self._index.set_line(here, entry.line)
            if entry.key in known:
                self._field(known[entry.key], entry, here, found)
            elif entry.key == "<<":
                self._index.add_problem(here, f"is not a known key: {_NO_MERGING}")
            else:
                self._index.add_unknown(here, "is not a known key", entry.key, list(known))
        return found

    def _field(self, field: SchemaField, entry: YamlEntry, place: KeyPath, found: dict[str, Any]) -> None:
        try:
            value = self._value(field, entry.value, place)
        except InvalidValue as wrong:
            empty = isinstance(entry.value, YamlScalar) and entry.value.is_null
            self._index.add_problem(place, str(wrong), entry.line if empty else entry.value.line)
        else:
            if value is not None or field.optional:
                found[field.name] = value

    def _value(self, field: SchemaField, node: YamlNode, place: KeyPath) -> Any:
        if field.item is not None:
            return self._named(field, node, place) if field.has(FieldFlag.BY_NAME) else self._listed(field, node, place)
        if field.is_table:
            if field.optional and isinstance(node, YamlScalar) and node.is_null:
                return None
            return self.read(field.kind, node, place)
        return self._values.read(field, node, place)

    def _named(self, field: SchemaField, node: YamlNode, place: KeyPath) -> tuple[Any, ...]:
        if isinstance(node, YamlScalar) and node.is_null:
            node = YamlTable((), node.line)
        if not isinstance(node, YamlTable):
            raise InvalidValue("a mapping of names, each with its own keys below it", node)
        check_count(field, len(node.entries))
        read = [self._entry(field, entry, (*place, entry.key)) for entry in node.entries]
        return tuple(item for item in read if item is not None)

    def _entry(self, field: SchemaField, entry: YamlEntry, place: KeyPath) -> Any | None:
        self._index.set_line(place, entry.line)
        with self._index.report_invalid(place):
            check_name(entry.key, NAME, entry.line)
        short = field.note(Shorthand)
        value = entry.value
        if short is not None and isinstance(value, YamlScalar) and not value.is_null:
            value = YamlTable((YamlEntry(short.field, value.line, value),), value.line)
        return self.read(field.item or object, value, place, name=entry.key)

    def _listed(self, field: SchemaField, node: YamlNode, place: KeyPath) -> tuple[Any, ...]:
        if isinstance(node, YamlScalar) and node.is_null:
            return ()
        if not isinstance(node, YamlList):
            raise InvalidValue("a list, each item a mapping that starts with `- `", node)
        check_count(field, len(node.items))
        read = []
        for index, item in enumerate(node.items):
            self._index.set_line((*place, index), item.line)
            read.append(self.read(field.item or object, item, (*place, index)))
        return tuple(item for item in read if item is not None)
