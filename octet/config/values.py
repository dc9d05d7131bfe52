"""One value: a node and what its field may be into text, a number, a list or a mapping."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ParamSpec, get_args, get_origin

from octet.config.fields import Field
from octet.config.kinds import Count, FilePath, Known, Range, Text, Unit
from octet.config.scalars import number, seconds, show_size, size, whole_number
from octet.config.sheet import Place, Sheet
from octet.config.tree import Entry, Items, Node, Scalar, Table, shown

_ANY_TEXT = Text(most=4096, least=1)
_ADAPTER_NAME = Text(most=64, least=1, what="a name")
P = ParamSpec("P")
_TRUTH = {"true": True, "false": False}


class Wrong(Exception):
    """The node is not what its field must be. The message goes on after the field's name."""

    def __init__(self, right: str, got: Node | str) -> None:
        super().__init__(f"must be {right}, got {got if isinstance(got, str) else shown(got)}")


class Values:
    """Reads what is no dataclass. Wrong items of lists and mappings are told one by one."""

    def __init__(self, sheet: Sheet, folder: Path) -> None:
        self._sheet = sheet
        self._folder = folder

    def read(self, field: Field, node: Node, place: Place) -> Any:
        """Raises Wrong."""
        if isinstance(node, Scalar) and node.is_null:
            if field.optional:
                return None
            raise Wrong(_right(field), node)
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

    def _text(self, field: Field, node: Node) -> str:
        known = field.note(Known)
        if known is not None:
            return str(_choice(known.names, node))
        text = _text(field.note(Text) or _ANY_TEXT, node)
        path = field.note(FilePath)
        return text if path is None or text == path.word else self._path(text, node)

    def _path(self, text: str, node: Node) -> str:
        try:
            return str(self._folder / Path(text).expanduser())
        except RuntimeError:
            raise Wrong("a path; this one's home folder is unknown", node) from None

    def _list(self, field: Field, node: Node, place: Place) -> tuple[str, ...]:
        if not isinstance(node, Items):
            raise Wrong("a list of texts, such as [one, two]", node)
        check_count(field, len(node.items))
        seen: dict[str, int] = {}
        for index, item in enumerate(node.items):
            self._sheet.stands((*place, index), item.line)
            self._attempt((*place, index), self._new, field, item, seen)
        return tuple(seen)

    def _new(self, field: Field, node: Node, seen: dict[str, int]) -> None:
        text = _text(field.note(Text) or _ANY_TEXT, node)
        if text.startswith("unix:") and not text.startswith("unix:/"):
            text = f"unix:{self._folder / text.removeprefix('unix:')}"
        if text in seen:
            raise Wrong(f"in the list once (it stands on line {seen[text]} already)", node)
        seen[text] = node.line

    def _mapping(self, field: Field, node: Node, place: Place) -> Mapping[str, str]:
        if not isinstance(node, Table):
            raise Wrong("a table, such as {tuned: path/to/adapter}", node)
        check_count(field, len(node.entries))
        read: dict[str, str] = {}
        for entry in node.entries:
            here = (*place, entry.key)
            self._sheet.stands(here, entry.line)
            self._attempt(here, check_name, entry.key, _ADAPTER_NAME, entry.line)
            self._attempt(here, self._pair, field, entry, read)
        return MappingProxyType(read)

    def _pair(self, field: Field, entry: Entry, read: dict[str, str]) -> None:
        read[entry.key] = self._text(field, entry.value)

    def _attempt(self, place: Place, read: Callable[P, object], *arguments: P.args, **options: P.kwargs) -> None:
        try:
            read(*arguments, **options)
        except Wrong as wrong:
            self._sheet.wrong(place, str(wrong))


def check_name(text: str, right: Text, line: int) -> None:
    """Raises Wrong."""
    _text(right, Scalar(text, line, plain=False))


def check_count(field: Field, num_items: int) -> None:
    """Raises Wrong."""
    count = field.note(Count)
    if count is not None and not count.least <= num_items <= count.most:
        raise Wrong(f"{count.least} to {count.most:,} entries long", f"{num_items:,}")


def _text(right: Text, node: Node) -> str:
    """Any scalar is the text that was written: `on` and `1.10` need no quotes where only text can be meant."""
    if not isinstance(node, Scalar) or node.is_null:
        raise Wrong(right.what, node)
    text = node.text
    if any("\ud800" <= character <= "\udfff" or character == "\0" for character in text):
        raise Wrong(f"{right.what} without surrogates and null characters", node)
    if not right.least <= len(text) <= right.most:
        raise Wrong(f"{right.what}, {right.least} to {right.most:,} characters long", node)
    if right.pattern is not None and not right.pattern.fullmatch(text):
        raise Wrong(right.what, node)
    return text


def _number(field: Field, node: Node) -> float:
    unit = field.note(Unit)
    if not isinstance(node, Scalar) or (unit is None and not node.plain):
        raise Wrong(_right(field), node)
    value = _parser(field)(node.text)
    limits = field.note(Range)
    if value is None or (limits is not None and value not in limits):
        raise Wrong(_right(field), node)
    return value


def _parser(field: Field) -> Callable[[str], float | None]:
    if field.kind is bool:
        return _TRUTH.get
    if field.note(Unit) is Unit.BYTES:
        return size
    if field.note(Unit) is Unit.SECONDS:
        return seconds
    return whole_number if field.kind is int else number


def _choice(names: tuple[str, ...], node: Node) -> str:
    if not isinstance(node, Scalar) or node.text not in names:
        raise Wrong(f"one of {', '.join(names)}", node)
    return node.text


def _right(field: Field) -> str:
    limits, unit = field.note(Range), field.note(Unit)
    if unit is Unit.BYTES and limits is not None:
        return f"a size such as 192m or 1g, from {show_size(limits.least)} to {show_size(limits.most)}"
    noun = {int: "a whole number", float: "a number", bool: "true or false"}.get(field.kind)
    if unit is Unit.SECONDS:
        noun = "seconds, such as 2, 250ms or 1m,"
    if noun is None:
        return "a list of texts" if get_origin(field.kind) is tuple else "text"
    return noun if limits is None else f"{noun} {limits}"
