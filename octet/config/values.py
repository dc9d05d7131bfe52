"""Converts YAML nodes to strings, numbers, lists and mappings, checked against the schema."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, get_args, get_origin

from octet.config.annotations import CountLimits, FilePath, OneOf, TextLimits, ValueUnit, parse_hub_reference
from octet.config.fields import SchemaField
from octet.config.yaml_tree import Problems, YamlList, YamlNode, YamlScalar, YamlTable, describe_node, quote_if_needed
from octet.limits import Range

KeyPath: TypeAlias = tuple[str | int, ...]
"""Keys and list indices from the top, such as ("specialists", "sql", "model")."""
_MAX_COMPARED = 64


_ANY_TEXT = TextLimits(most=4096, least=1)
_ADAPTER_NAME = TextLimits(most=64, least=1, what="a name")


class InvalidConfigValue(Exception):
    """The value is not allowed. The message is the end of a sentence that begins with the key."""

    def __init__(self, right: str, got: YamlNode | str) -> None:
        super().__init__(f"must be {right}, got {got if isinstance(got, str) else describe_node(got)}")


def format_key_path(place: KeyPath) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{quote_if_needed(part)}" for part in place)
    return text.removeprefix(".")


def suggest_name(text: str, known: list[str]) -> str:
    close = get_close_matches(text[:_MAX_COMPARED], [name[:_MAX_COMPARED] for name in known], n=1)
    return f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(map(quote_if_needed, known))}"


class KeyIndex:
    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._lines: dict[KeyPath, int] = {(): 1}
        self._invalid: set[KeyPath] = set()

    def set_line(self, place: KeyPath, line: int) -> None:
        self._lines[place] = line

    def has_key(self, *place: str | int) -> bool:
        return place in self._lines

    def find_line(self, place: KeyPath) -> int:
        """Return the line of the key, or of the closest enclosing key."""
        while place not in self._lines:
            place = place[:-1]
        return self._lines[place]

    def add_problem(self, place: KeyPath, message: str, line: int | None = None) -> None:
        """Report a problem; later checks skip this key and the mappings around it."""
        self._invalid.update(place[:length] for length in range(1, len(place) + 1))
        self._problems.add(self.find_line(place) if line is None else line, f"{format_key_path(place)} {message}")

    def add_unknown(self, place: KeyPath, what: str, name: str, known: list[str]) -> None:
        hint = "" if self._problems.is_full else suggest_name(name, known)
        self.add_problem(place, f"{what}: {hint}")

    @contextmanager
    def report_invalid(self, place: KeyPath) -> Iterator[None]:
        try:
            yield
        except InvalidConfigValue as wrong:
            self.add_problem(place, str(wrong))

    def is_valid(self, *place: str | int) -> bool:
        """Whether there is no problem at this key or below it."""
        return place not in self._invalid

    def names(self, section: str) -> list[str]:
        """Return the keys of a section, valid or not."""
        return [str(place[1]) for place in self._lines if len(place) == 2 and place[0] == section]


_INTEGER = re.compile(r"[-+]?(0|[1-9](_?[0-9]){0,24})")
_NUMBER = re.compile(r"[-+]?[0-9](_?[0-9]){0,24}(\.[0-9]{0,24})?([eE][-+]?[0-9]{1,3})?")
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,6})?)([kmgt])(?:ib)?", re.IGNORECASE)
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(us|ms|s|m|h)")
_BYTES_PER_UNIT = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SECONDS_PER_UNIT = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_integer(text: str) -> int | None:
    return int(text) if _INTEGER.fullmatch(text) else None


def parse_number(text: str) -> float | None:
    """Return the number; None for other text, such as `.nan` or `.inf`. A number that is too large becomes infinite."""
    return float(text) if _NUMBER.fullmatch(text) else None


def parse_size(text: str) -> int | None:
    """Parse a size in bytes, such as `192m`, `1g`, `1.5gib` or a number."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return parse_integer(text)
    return int(float(match[1]) * _BYTES_PER_UNIT[match[2].lower()])


def parse_duration(text: str) -> float | None:
    match = _DURATION.fullmatch(text)
    if match is None:
        return parse_number(text)
    value, unit = float(match[1]), match[2]
    return value / 1000 if unit == "ms" else value * _SECONDS_PER_UNIT[unit]


def format_size(num_bytes: float) -> str:
    for unit in ("t", "g", "m", "k"):
        if num_bytes and num_bytes % _BYTES_PER_UNIT[unit] == 0:
            return f"{num_bytes / _BYTES_PER_UNIT[unit]:.0f}{unit}"
    return f"{num_bytes:.0f}" if num_bytes < inf else "inf"


class ValueReader:
    """Reads scalars, lists and mappings. Invalid items of a list are reported one by one."""

    def __init__(self, index: KeyIndex, folder: Path) -> None:
        self._index = index
        self._folder = folder

    def read(self, field: SchemaField, node: YamlNode, place: KeyPath) -> Any:
        """Return the value. Raises InvalidConfigValue if the field does not allow it."""
        if isinstance(node, YamlScalar) and node.is_null:
            if field.optional:
                return None
            raise InvalidConfigValue(_describe_allowed(field), node)
        if field.kind in (int, float, bool):
            return _number(field, node)
        if field.kind is str:
            return self._text(field, node)
        origin = get_origin(field.kind)
        if origin is tuple:
            return self._list(field, node, place)
        if origin is Mapping:
            return self._mapping(field, node, place)
        return _choice(get_args(field.kind), node)

    def _text(self, field: SchemaField, node: YamlNode) -> str:
        known = field.note(OneOf)
        if known is not None:
            return str(_choice(known.names, node))
        text = _text(field.note(TextLimits) or _ANY_TEXT, node)
        path = field.note(FilePath)
        if path is None or text == path.word or (path.hub and _is_hub_reference(text, node)):
            return text
        try:
            # Path drops a leading `./`, which says that the ~ is part of a name.
            return str(self._folder / (Path(text).expanduser() if text.startswith("~") else Path(text)))
        except RuntimeError:
            raise InvalidConfigValue("a path whose ~ is a known home folder", node) from None

    def _list(self, field: SchemaField, node: YamlNode, place: KeyPath) -> tuple[str, ...]:
        if not isinstance(node, YamlList):
            raise InvalidConfigValue("a list of strings, such as [one, two]", node)
        check_count(field, len(node.items))
        seen: dict[str, int] = {}
        for index, item in enumerate(node.items):
            self._index.set_line((*place, index), item.line)
            with self._index.report_invalid((*place, index)):
                text = _text(field.note(TextLimits) or _ANY_TEXT, item)
                if text.startswith("unix:") and not text.startswith("unix:/"):
                    text = f"unix:{self._folder / text.removeprefix('unix:')}"
                if text in seen:
                    raise InvalidConfigValue(f"in the list only once (it is already on line {seen[text]})", item)
                seen[text] = item.line
        return tuple(seen)

    def _mapping(self, field: SchemaField, node: YamlNode, place: KeyPath) -> Mapping[str, str]:
        if not isinstance(node, YamlTable):
            raise InvalidConfigValue("a mapping, such as {tuned: path/to/adapter}", node)
        check_count(field, len(node.entries))
        read: dict[str, str] = {}
        for entry in node.entries:
            here = (*place, entry.key)
            self._index.set_line(here, entry.line)
            with self._index.report_invalid(here):
                check_name(entry.key, _ADAPTER_NAME, entry.line)
            with self._index.report_invalid(here):
                read[entry.key] = self._text(field, entry.value)
        return MappingProxyType(read)


def _is_hub_reference(text: str, node: YamlNode) -> bool:
    try:
        return parse_hub_reference(text) is not None
    except ValueError as form:
        raise InvalidConfigValue(str(form), node) from None


def check_name(text: str, right: TextLimits, line: int) -> None:
    """Raises InvalidConfigValue for a name outside the limits."""
    _text(right, YamlScalar(text, line, plain=False))


def check_count(field: SchemaField, num_items: int) -> None:
    """Raises InvalidConfigValue for too few or too many items."""
    count = field.note(CountLimits)
    if count is not None and not count.least <= num_items <= count.most:
        raise InvalidConfigValue(f"{count.least} to {count.most:,} entries long", f"{num_items:,} entries")


def _text(right: TextLimits, node: YamlNode) -> str:
    """Read any scalar as it is written: `on` and `1.10` need no quotes where text is expected."""
    if not isinstance(node, YamlScalar) or node.is_null:
        raise InvalidConfigValue(right.what, node)
    text = node.text
    if any("\ud800" <= character <= "\udfff" or character == "\0" for character in text):
        raise InvalidConfigValue(f"{right.what} without surrogates or null characters", node)
    if not right.least <= len(text) <= right.most:
        raise InvalidConfigValue(f"{right.what}, {right.least} to {right.most:,} characters long", node)
    if right.pattern is not None and not right.pattern.fullmatch(text):
        raise InvalidConfigValue(right.what, node)
    return text


def _number(field: SchemaField, node: YamlNode) -> float | str:
    """Read a number, or one of the words that the field allows instead."""
    unit, limits, words = field.note(ValueUnit), field.note(Range), field.note(OneOf)
    if words is not None and isinstance(node, YamlScalar) and node.text in words.names:
        return node.text
    if not isinstance(node, YamlScalar) or (unit is None and not node.plain):
        raise InvalidConfigValue(_describe_allowed(field), node)
    value = _PARSERS[unit or field.kind](node.text)
    if value is None or (limits is not None and value not in limits):
        raise InvalidConfigValue(_describe_allowed(field), node)
    return value


_PARSERS: Mapping[Any, Callable[[str], float | None]] = {
    bool: {"true": True, "false": False}.get,
    int: parse_integer,
    float: parse_number,
    ValueUnit.BYTES: parse_size,
    ValueUnit.SECONDS: parse_duration,
}


def _choice(names: tuple[str, ...], node: YamlNode) -> str:
    if not isinstance(node, YamlScalar) or node.text not in names:
        raise InvalidConfigValue(" or ".join(names), node)
    return node.text


def _describe_allowed(field: SchemaField) -> str:
    limits, unit = field.note(Range), field.note(ValueUnit)
    if unit is ValueUnit.BYTES and limits is not None:
        return f"a size such as 192m or 1g, from {format_size(limits.least)} to {format_size(limits.most)}"
    noun = {int: "a whole number", float: "a number", bool: "true or false"}.get(field.kind)
    if unit is ValueUnit.SECONDS:
        noun = "a number of seconds (such as 2, 250ms or 1m)"
    if noun is None:
        return "a list of strings" if get_origin(field.kind) is tuple else "text"
    words = field.note(OneOf)
    either = "" if words is None else f", {' or '.join(words.names)}"
    return f"{noun} {limits or ''}".rstrip() + either
