"""What stands beside a field's type in `octet.config.ensemble`: its limits, and what may be done with it."""

import re
from dataclasses import dataclass
from enum import Enum

from octet.rpc.range import Range

__all__ = [
    "ADDRESS",
    "DIGEST",
    "HOST",
    "NAME",
    "ORIGIN",
    "Count",
    "FilePath",
    "Known",
    "Mark",
    "Range",
    "Refers",
    "Short",
    "Text",
    "Unit",
]


class Mark(Enum):
    LIVE = "live"
    """A running router takes a new value over without a restart."""
    RUNS = "runs"
    """Decides how the ensemble runs, never who answers: no part of the digest."""
    SHARED = "shared"
    """May stand at the top of the file, for every specialist that does not say otherwise."""
    BY_NAME = "by name"
    """A table of names, each with a table of its own, rather than a list."""


class Unit(Enum):
    BYTES = "bytes"
    SECONDS = "seconds"


@dataclass(frozen=True, slots=True)
class Text:
    most: int
    """Characters."""
    least: int = 0
    pattern: re.Pattern[str] | None = None
    what: str = "text"


@dataclass(frozen=True, slots=True)
class Count:
    """How many there may be of a list or table."""

    most: int
    least: int = 0


@dataclass(frozen=True, slots=True)
class FilePath:
    """A path, relative to the file it is read from."""

    word: str | None = None
    """Text that is no path."""


@dataclass(frozen=True, slots=True)
class Refers:
    """The name of something in this field of the ensemble."""

    to: str


@dataclass(frozen=True, slots=True)
class Known:
    """One of a fixed set of names."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Short:
    """A text in place of the table stands for this field alone."""

    field: str


NAME = Text(
    most=64,
    least=1,
    pattern=re.compile(r"[a-z0-9][a-z0-9._-]{0,63}"),
    what="a name of lower-case letters, digits, '.', '_' and '-' that starts with a letter or a digit",
)
_PORT = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
ADDRESS = Text(
    most=1024,
    least=3,
    pattern=re.compile(rf"unix:[^\s].*|(dns:///)?([^\s:/\[\]]+|\[[0-9A-Fa-f:.]+\]):{_PORT}"),
    what="an address such as host:port, dns:///name:port or unix:PATH, with a port from 1 to 65535",
)
ORIGIN = Text(
    most=300,
    least=8,
    pattern=re.compile(rf"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:{_PORT})?"),
    what="an origin as browsers write it: https:// or http://, a host in lower case, a port unless it is the usual one",
)
DIGEST = Text(most=64, least=64, pattern=re.compile("[0-9a-f]{64}"), what="a sha256 of 64 hex digits")
HOST = Text(most=253, least=1, pattern=re.compile(r"[^\s/]+"), what="a host's name or address")
