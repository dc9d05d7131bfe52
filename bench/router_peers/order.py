"""What a prompt asks of a simulated backend. It stands in the prompt: that is what every router passes on untouched."""

import re
from dataclasses import dataclass
from typing import Self

_TOLD = re.compile(rb"\[(\d+) tokens every (\d+) us(, each by itself)?\]")
_BEGINS = b"["
WORD = " word"
"""A token. Nothing else that anybody sends has it."""


class OrderMissing(ValueError):
    """A prompt that asks for nothing."""


@dataclass(frozen=True, slots=True)
class Order:
    tokens: int
    pace_us: int = 0
    """Microseconds from one token to the next; the first comes at once."""
    joins: bool = True
    """As a replica of Octet's does, where it is one that is asked: not so many messages."""

    def __str__(self) -> str:
        return f"[{self.tokens} tokens every {self.pace_us} us{'' if self.joins else ', each by itself'}]"

    @classmethod
    def read(cls, raw: bytes) -> Self:
        """The last one there is. Looked for from the end: a prompt may be long."""
        at = len(raw)
        while (at := raw.rfind(_BEGINS, 0, at)) >= 0:
            found = _TOLD.match(raw, at)
            if found is not None:
                return cls(int(found[1]), int(found[2]), found[3] is None)
        raise OrderMissing(f"no order in {raw[-200:]!r}")
