"""What a threshold is to do, in one figure."""

from dataclasses import dataclass
from typing import Literal

Aim = Literal["saves", "disagreements"]
CAUGHT: dict[Aim, str] = {
    "saves": "requests in which only the shadow was right",
    "disagreements": "requests in which the two disagreed",
}


@dataclass(frozen=True, slots=True)
class Catch:
    """The smallest threshold that catches this share of what it is for."""

    share: float
    aim: Aim = "saves"

    def __str__(self) -> str:
        return f"the smallest threshold that catches {self.share:.0%} of the {CAUGHT[self.aim]}"


@dataclass(frozen=True, slots=True)
class Budget:
    """The largest threshold that shadows no more than this share of what is shadowed today."""

    share: float

    def __str__(self) -> str:
        return f"the largest threshold that keeps at most {self.share:.0%} of the shadows there were"


Rule = Catch | Budget
