"""YAML into a tree with line numbers, from the parser's events: no object of any kind is ever constructed.

Nesting and the number of nodes are bounded, each use of an alias counted with all that it stands for: a file of a few
lines cannot stand for a billion nodes.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from octet.config.problem import Problems
from octet.config.tree import Entry, Items, Node, Scalar, Table, quoted

MOST_BYTES = 1 << 20
MOST_NODES = 50_000
MOST_DEPTH = 16


class Lines:
    """Lines are counted as editors do, at every newline."""

    def __init__(self, text: str) -> None:
        self._ends = [match.start() for match in re.finditer("\n", text)]
        self.count = max(1, len(self._ends) + (not text.endswith("\n")))

    def at(self, index: int) -> int:
        return min(bisect_left(self._ends, index) + 1, self.count)


def decode(content: bytes, problems: Problems) -> str | None:
    if len(content) > MOST_BYTES:
        problems.add(None, f"the file is larger than {MOST_BYTES:,} bytes, which is the most that is read")
        return None
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problems.add(line, f"the file must be UTF-8; the byte 0x{content[error.start]:02x} here is not")
        return None


def compose(text: str, problems: Problems) -> Node | None:
    """The document; None where there is none, which is then a problem. Problems may also come with a document."""
    composer = _Composer(text, problems)
    try:
        return composer.document()
    except _Stop as stop:
        problems.add(stop.line, stop.message)
        return None


class _Stop(Exception):
    """There is no sense in reading on."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


class _Composer:
    def __init__(self, text: str, problems: Problems) -> None:
        self._lines = Lines(text)
        self._problems = problems
        self._line = 1
        self._events = self._parse(text)
        self._num_nodes = 0
        self._anchors: dict[str, tuple[Node, int]] = {}
        """With the number of nodes each stands for."""

    def document(self) -> Node | None:
        import yaml  # not for the SDK, which reads no configuration

        start = self._next()
        while not isinstance(start, yaml.DocumentStartEvent):
            if isinstance(start, yaml.StreamEndEvent):
                self._problems.add(1, "the file is empty: it must name at least one specialist under `specialists`")
                return None
            start = self._next()
        root = self._node(self._next(), depth=0)
        self._next()
        if isinstance(self._next(), yaml.DocumentStartEvent):
            raise _Stop(self._line, "a second document starts here: a configuration is one document")
        return root

    def _parse(self, text: str) -> Iterator[Any]:
        """Events. Whatever the parser stumbles over ends the document with a reason."""
        import yaml

        try:
            yield from yaml.parse(text, Loader=yaml.SafeLoader)
        except yaml.reader.ReaderError as error:
            line = self._lines.at(error.position)
            raise _Stop(line, f"the character {error.character:#x} cannot stand in YAML") from None
        except yaml.MarkedYAMLError as error:
            raise self._not_yaml(error) from None
        except (ValueError, OverflowError, LookupError, AttributeError, AssertionError) as error:
            # Escapes and version numbers beyond all bounds, which the parser does not look for.
            raise _Stop(self._line, f"this is not valid YAML: {error}") from None

    def _not_yaml(self, error: Any) -> _Stop:
        mark = error.problem_mark or error.context_mark
        line = self._line if mark is None else self._lines.at(mark.index)
        if "'\\t'" in str(error.problem):
            return _Stop(line, "a tab stands where YAML wants spaces: indent with spaces only")
        context = f" {error.context}," if error.context else ""
        return _Stop(line, f"this is not valid YAML:{context} {error.problem}")

    def _next(self) -> Any:
        event = next(self._events)
        self._line = self._lines.at(event.start_mark.index)
        return event

    def _node(self, event: Any, depth: int) -> Node:
        import yaml

        line = self._line
        before = self._num_nodes
        self._count(1)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event.anchor)
        if event.tag is not None:
            self._problems.add(line, f"tags such as {quoted(event.tag)} have no meaning here: leave it out")
        if isinstance(event, yaml.ScalarEvent):
            node: Node = Scalar(event.value, line, plain=event.style is None)
        elif depth == MOST_DEPTH:
            raise _Stop(line, f"nested deeper than {MOST_DEPTH} levels")
        elif isinstance(event, yaml.SequenceStartEvent):
            node = Items(tuple(self._items(yaml.SequenceEndEvent, depth)), line)
        else:
            node = Table(tuple(self._entries(yaml.MappingEndEvent, depth)), line)
        if event.anchor is not None:
            self._anchors[event.anchor] = (node, self._num_nodes - before)
        return node

    def _items(self, end: type, depth: int) -> Iterator[Node]:
        while not isinstance(event := self._next(), end):
            yield self._node(event, depth + 1)

    def _entries(self, end: type, depth: int) -> Iterator[Entry]:
        seen: dict[str, int] = {}
        while not isinstance(event := self._next(), end):
            line = self._line
            key = self._node(event, depth + 1)
            value = self._node(self._next(), depth + 1)
            if not isinstance(key, Scalar):
                self._problems.add(line, "a key must be text, not a list or a table")
            elif key.text in seen:
                first = seen[key.text]
                self._problems.add(line, f"the key {quoted(key.text)} stands on line {first} already: keep one of them")
            else:
                seen[key.text] = line
                yield Entry(key.text, line, value)

    def _alias(self, anchor: str | None) -> Node:
        """A node that holds itself has no anchor yet when its alias comes, so trees stay finite."""
        if anchor is None or anchor not in self._anchors:
            raise _Stop(self._line, f"the alias *{anchor:.60} refers to nothing complete before it")
        node, num_nodes = self._anchors[anchor]
        self._count(num_nodes)
        return node

    def _count(self, num_nodes: int) -> None:
        self._num_nodes += num_nodes
        if self._num_nodes > MOST_NODES:
            raise _Stop(self._line, f"more than {MOST_NODES:,} values, counting what aliases stand for")
