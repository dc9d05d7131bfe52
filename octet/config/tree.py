"""A YAML document as it stands in the file: nothing is converted yet, and every node knows its line."""

import re
from dataclasses import dataclass
from typing import TypeAlias

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_SHOWN = 60
_BARE = re.compile(r"[A-Za-z0-9._<-]{1,64}")


@dataclass(frozen=True, slots=True)
class Scalar:
    text: str
    line: int
    plain: bool
    """Written without quotes: it may be meant as a number."""

    @property
    def is_null(self) -> bool:
        return self.plain and self.text in _NULLS


@dataclass(frozen=True, slots=True)
class Items:
    items: "tuple[Node, ...]"
    line: int


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    line: int
    value: "Node"


@dataclass(frozen=True, slots=True)
class Table:
    entries: tuple[Entry, ...]
    """No key twice."""
    line: int


Node: TypeAlias = Scalar | Items | Table


def shown(node: Node) -> str:
    """What stands there, for whoever wrote it."""
    if isinstance(node, Items):
        return "a list"
    if isinstance(node, Table):
        return "a table"
    return "nothing" if node.is_null else quoted(node.text)


def bare(text: str) -> str:
    """A name without quotes, where it needs none."""
    return text if _BARE.fullmatch(text) else quoted(text)


def quoted(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN else repr(text[:_SHOWN]) + "..."
