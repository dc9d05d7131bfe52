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
    """The exceptions that `parse` may raise. Any other exception is a bug, including a base class of these."""
    seeds: tuple[bytes, ...]
    """Valid inputs, made by the product's own writers where possible."""
    shape: Shape = "bytes"
    """The kind of input. It selects the mutations."""
    words: tuple[bytes, ...] = ()
    """Tokens with a meaning to the parser. Mutations insert them at random."""
    message: type[Message] | None = None
    """The type of the protobuf message that the bytes encode, or None."""
    share: float = 1.0
    """Fraction of the usual number of inputs; below 1 for expensive parsers."""
    cpu_seconds: float = 2.0
    """Limit on the CPU time for one input. It is generous."""
