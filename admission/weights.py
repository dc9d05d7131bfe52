"""The weights that supervised replicas of a specialist run, or ran and can run again."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Weights:
    number: int  # 0 for those that the configuration names
    model: str  # a directory, a GGUF file or hf:ORG/NAME
    revision: str = ""  # sha256 of the content, hex; empty until it is known


@dataclass(frozen=True, slots=True)
class Refresh:
    """A specialist's weights, and what an operator has ordered with them."""

    configured: str = ""  # the configured model when the configuration last began a lane; empty without a supervisor
    weights: tuple[Weights, ...] = ()
    next_number: int = 1
    coming: int = 0  # the weights that start and then become the candidate; 0 for none
    returning: int = 0  # the lane that serves again as soon as a replica holds it, while it is the previous lane; or 0
    by: str = ""  # the author of the last order, and the reason
    why: str = ""
    failure: str = ""  # why that order came to nothing

    def numbered(self, number: int) -> Weights | None:
        return next((each for each in self.weights if each.number == number), None)

    def of_revision(self, revision: str) -> Weights | None:
        return next((each for each in self.weights if each.revision == revision), None)

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> "Refresh":
        """Raises KeyError or TypeError for an invalid body."""
        return cls(**{**body, "weights": tuple(Weights(**each) for each in body["weights"])})
