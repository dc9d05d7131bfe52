"""A parser under test: what it reads, what it may refuse with, and what it reads gladly."""

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
    """What it may raise. Anything else is a bug, also the bases of these."""
    seeds: tuple[bytes, ...]
    """Valid, built by the product's own writers where there are some."""
    shape: Shape = "bytes"
    """What the mutations know of it."""
    words: tuple[bytes, ...] = ()
    """What means something to it: put in at random."""
    message: type[Message] | None = None
    """Of what the bytes are, where protobuf knows them."""
    share: float = 1.0
    """Of the usual number of inputs, for what costs more than others."""
    cpu_seconds: float = 2.0
    """For one input, generously."""
