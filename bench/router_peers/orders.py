"""The order that a prompt gives to a backend: a number of tokens at a pace."""

import re
from dataclasses import dataclass
from typing import Self

WORD = " word"  # one token; no prompt contains it
_ORDER = re.compile(rb"\[(\d+) tokens every (\d+) us(, each by itself)?\]")
_BEGIN = b"["


class OrderMissing(ValueError):
    """A prompt has no order."""


@dataclass(frozen=True, slots=True)
class Order:
    tokens: int
    pace_us: int = 0  # microseconds between tokens
    joins: bool = True  # whether a replica may join tokens into one message

    def __str__(self) -> str:
        return f"[{self.tokens} tokens every {self.pace_us} us{'' if self.joins else ', each by itself'}]"

    @classmethod
    def read(cls, raw: bytes) -> Self:
        """Return the last order in the text, which is searched from the end, because a prompt may be long."""
        at = len(raw)
        while (at := raw.rfind(_BEGIN, 0, at)) >= 0:
            found = _ORDER.match(raw, at)
            if found is not None:
                return cls(int(found[1]), int(found[2]), found[3] is None)
        raise OrderMissing(f"the prompt contains no order: {raw[-200:]!r}")
