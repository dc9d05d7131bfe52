"""What became of shadows, since the start: ordered = answered + shed + failed + those under way."""

from dataclasses import dataclass
from typing import Literal

Ending = Literal["answered", "shed", "failed"]


@dataclass(slots=True)
class Tally:
    ordered: int = 0
    sent: int = 0
    answered: int = 0
    shed: int = 0
    """There was no budget, no room or no seat; the replica would not have it; it was too long; or its primary ended
    without an answer."""
    failed: int = 0

    def end(self, ending: Ending) -> None:
        self.answered += ending == "answered"
        self.shed += ending == "shed"
        self.failed += ending == "failed"
