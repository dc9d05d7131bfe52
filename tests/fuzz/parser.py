"""A parser under test: its input, its errors, and valid examples."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from google.protobuf.message import Message

Shape = Literal["bytes", "text", "json"]


@dataclass(frozen=True, slots=True)
class Parser:
    name: str
    parse: Callable[[bytes], object]
    refuses: tuple[type[Exception], ...]
    """The exceptions it may raise. Any other is a bug, including their base classes."""
    seeds: tuple[bytes, ...]
    """Valid inputs, made by the product's own writers where possible."""
    shape: Shape = "bytes"
    """The kind of input, which selects mutations."""
    words: tuple[bytes, ...] = ()
    """Tokens with a meaning to the parser, inserted at random."""
    message: type[Message] | None = None
    """The protobuf message type, if the bytes are one."""
    share: float = 1.0
    """Share of the usual number of inputs, for expensive parsers."""
    cpu_seconds: float = 2.0
    """A generous limit in seconds for one input."""
