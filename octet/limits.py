"""The limits of prompts and guesses, ranges of numbers, and values shortened for messages. Imports nothing from Octet:
every package uses it."""

from math import isfinite
from typing import NamedTuple

MAX_PROMPT_BYTES = 2_000_000
"""All text of a prompt or conversation together, with template and body applied. It is the same over gRPC and HTTP, for
jobs and for the command line."""
MAX_DRAFT_WINDOW = 64  # tokens that a step may guess ahead for one request
_MAX_SHOWN = 60


class Range(NamedTuple):
    least: float
    most: float
    open: bool = False  # whether `least` itself is excluded
    or_zero: bool = False  # whether 0 is also allowed

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int | float) or not isfinite(value):
            return False
        if self.or_zero and value == 0:
            return True
        return (self.least < value if self.open else self.least <= value) and value <= self.most

    def __str__(self) -> str:
        zero = "0 or " if self.or_zero else ""
        return f"{zero}in {'(' if self.open else '['}{self.least:,}, {self.most:,}]"


def shorten(value: object) -> str:
    """Format a value from a request, shortened to fit into a message."""
    shown = value[:_MAX_SHOWN] if isinstance(value, str | bytes) else value
    text = repr(shown)
    return text if len(text) <= _MAX_SHOWN and shown == value else text[: _MAX_SHOWN - 3] + "..."
