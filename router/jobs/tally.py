"""How many jobs passed through this router's hands, since the start."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    submitted: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    """By status: done, failed, cancelled. Those that somebody cancelled from outside are not among them."""
