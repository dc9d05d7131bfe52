"""Parses YAML into a bounded tree with line numbers, and collects problems."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

MAX_PROBLEMS = 100
_MAX_MESSAGE = 1000
EMBEDDED = "the embedded default"


class Problem(NamedTuple):
    line: int | None  # counted from 1; None for the file as a whole
    message: str

    def format(self, source: Path | None) -> str:
        """Format the problem as FILE:LINE: message, as compilers do."""
        file = EMBEDDED if source is None else str(source)
        return f"{file}: {self.message}" if self.line is None else f"{file}:{self.line}: {self.message}"


class ConfigInvalid(ValueError):
    """The file is invalid. `problems` is sorted by line and never empty."""

    def __init__(self, problems: Iterable[Problem], source: Path | None) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line or 0))
        self.source = source
        super().__init__("\n".join(problem.format(source) for problem in self.problems))


class Problems:
    """Collects problems; after MAX_PROBLEMS it only counts them."""

    def __init__(self) -> None:
        self._found: dict[Problem, None] = {}
        self._more = 0

    @property
    def is_full(self) -> bool:
        return len(self._found) >= MAX_PROBLEMS

    def add(self, line: int | None, message: str) -> None:
        """Add a problem. The message may quote the file, so it is shortened and unprintable characters are replaced."""
        shown = message if len(message) <= _MAX_MESSAGE else message[:_MAX_MESSAGE] + "..."
        problem = Problem(line, "".join(one if one.isprintable() else "\ufffd" for one in shown))
        if not self.is_full:
            self._found[problem] = None
        elif problem not in self._found:
            self._more += 1

    def __bool__(self) -> bool:
        return bool(self._found)

    def raise_if_any(self, source: Path | None) -> None:
        """Raises ConfigInvalid with all problems, if there are any."""
        if not self._found:
            return
        last = max(problem.line or 0 for problem in self._found) or None
        more = [Problem(last, f"and {self._more} more problems")] if self._more else []
        raise ConfigInvalid([*self._found, *more], source)


_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_MAX_QUOTED = 60
_BARE = re.compile(r"[A-Za-z0-9._<-]{1,64}")


@dataclass(frozen=True, slots=True)
class YamlScalar:
    text: str
    line: int
    plain: bool  # written without quotes: it may be a number

    @property
    def is_null(self) -> bool:
        return self.plain and self.text in _NULLS


@dataclass(frozen=True, slots=True)
class YamlList:
    items: "tuple[YamlNode, ...]"
    line: int


@dataclass(frozen=True, slots=True)
class YamlEntry:
    key: str
    line: int
    value: "YamlNode"


@dataclass(frozen=True, slots=True)
class YamlTable:
    entries: tuple[YamlEntry, ...]  # no key occurs twice
    line: int


YamlNode: TypeAlias = YamlScalar | YamlList | YamlTable


def describe_node(node: YamlNode) -> str:
    if isinstance(node, YamlList):
        return "a list"
    if isinstance(node, YamlTable):
        return "a mapping"
    return "nothing" if node.is_null else quote(node.text)


def quote_if_needed(text: str) -> str:
    return text if _BARE.fullmatch(text) else quote(text)


def quote(text: str) -> str:
    return repr(text) if len(text) <= _MAX_QUOTED else repr(text[:_MAX_QUOTED]) + "..."


MAX_BYTES = 1 << 20
MAX_NODES = 50_000
MAX_DEPTH = 16


class _Unreadable(Exception):
    """The rest of the file cannot be read. The arguments are those of `Problems.add`."""


def compose_yaml(content: bytes, problems: Problems) -> YamlNode | None:
    """Return the root node; None if the content is not a YAML document. Problems are added to `problems`."""
    try:
        return _Composer(_decode(content), problems).document()
    except _Unreadable as stop:
        problems.add(*stop.args)
        return None


def _decode(content: bytes) -> str:
    if len(content) > MAX_BYTES:
        raise _Unreadable(None, f"the file is larger than the limit of {MAX_BYTES:,} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"the file must be UTF-8; the byte 0x{content[error.start]:02x} here is not"
        raise _Unreadable(line, message) from None


class _Composer:
    def __init__(self, text: str, problems: Problems) -> None:
        self._line_ends = [match.start() for match in re.finditer("\n", text)]
        self._num_lines = max(1, len(self._line_ends) + (not text.endswith("\n")))
        self._problems = problems
        self._line = 1
        self._events = self._parse(text)
        self._num_nodes = 0
        self._anchors: dict[str, tuple[YamlNode, int]] = {}  # the node of each anchor, and its number of nodes

    def document(self) -> YamlNode | None:
        import yaml  # not needed by the SDK

        start = self._next()
        while not isinstance(start, yaml.DocumentStartEvent):
            if isinstance(start, yaml.StreamEndEvent):
                self._problems.add(1, "the file is empty: it must name at least one specialist under `specialists`")
                return None
            start = self._next()
        root = self._node(self._next(), depth=0)
        self._next()
        if isinstance(self._next(), yaml.DocumentStartEvent):
            raise _Unreadable(self._line, "a second document starts here: a configuration must have only one")
        return root

    def _parse(self, text: str) -> Iterator[Any]:
        """Yield parser events. Raises _Unreadable, with a reason, for every parser error."""
        import yaml

        try:
            yield from yaml.parse(text, Loader=yaml.SafeLoader)
        except yaml.reader.ReaderError as error:
            line = self._line_at(error.position)
            raise _Unreadable(line, f"the character {error.character:#x} is not allowed in YAML") from None
        except yaml.MarkedYAMLError as error:
            raise self._not_yaml(error) from None
        except (ValueError, OverflowError, LookupError, AttributeError, AssertionError) as error:
            # The parser itself does not check for escapes and version numbers that are out of range.
            raise _Unreadable(self._line, f"this is not valid YAML: {error}") from None

    def _not_yaml(self, error: Any) -> _Unreadable:
        mark = error.problem_mark or error.context_mark
        line = self._line if mark is None else self._line_at(mark.index)
        if "'\\t'" in str(error.problem):
            return _Unreadable(line, "a tab where YAML expects spaces: indent with spaces only")
        context = f" {error.context}," if error.context else ""
        return _Unreadable(line, f"this is not valid YAML:{context} {error.problem}")

    def _line_at(self, index: int) -> int:
        return min(bisect_left(self._line_ends, index) + 1, self._num_lines)

    def _next(self) -> Any:
        event = next(self._events)
        self._line = self._line_at(event.start_mark.index)
        return event

    def _node(self, event: Any, depth: int) -> YamlNode:
        import yaml

        line = self._line
        before = self._num_nodes
        self._count(1)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event.anchor)
        if event.tag is not None:
            self._problems.add(line, f"tags such as {quote(event.tag)} are not supported: remove the tag")
        if isinstance(event, yaml.ScalarEvent):
            node: YamlNode = YamlScalar(event.value, line, plain=event.style is None)
        elif depth == MAX_DEPTH:
            raise _Unreadable(line, f"this is nested deeper than {MAX_DEPTH} levels")
        elif isinstance(event, yaml.SequenceStartEvent):
            node = YamlList(tuple(self._items(yaml.SequenceEndEvent, depth)), line)
        else:
            node = YamlTable(tuple(self._entries(yaml.MappingEndEvent, depth)), line)
        if event.anchor is not None:
            self._anchors[event.anchor] = (node, self._num_nodes - before)
        return node

    def _items(self, end: type, depth: int) -> Iterator[YamlNode]:
        while not isinstance(event := self._next(), end):
            yield self._node(event, depth + 1)

    def _entries(self, end: type, depth: int) -> Iterator[YamlEntry]:
        seen: dict[str, int] = {}
        while not isinstance(event := self._next(), end):
            line = self._line
            key = self._node(event, depth + 1)
            value = self._node(self._next(), depth + 1)
            if not isinstance(key, YamlScalar):
                self._problems.add(line, "a key must be text, not a list or a mapping")
            elif key.text in seen:
                first = seen[key.text]
                self._problems.add(line, f"the key {quote(key.text)} is already on line {first}: keep one of them")
            else:
                seen[key.text] = line
                yield YamlEntry(key.text, line, value)

    def _alias(self, anchor: str | None) -> YamlNode:
        """Return the node with this anchor. A node must not contain an alias to itself, so that trees stay finite."""
        if anchor is None or anchor not in self._anchors:
            raise _Unreadable(self._line, f"the alias *{anchor:.60} must come after the end of a node with that anchor")
        node, num_nodes = self._anchors[anchor]
        self._count(num_nodes)
        return node

    def _count(self, num_nodes: int) -> None:
        self._num_nodes += num_nodes
        if self._num_nodes > MAX_NODES:
            raise _Unreadable(self._line, f"the file has more than {MAX_NODES:,} values, counting expanded aliases")
