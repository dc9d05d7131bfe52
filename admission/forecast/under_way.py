"""The step that is being taken: nothing can be changed about it, and nobody can join it."""

from dataclasses import dataclass, field

from admission.forecast.prices import Prices
from admission.forecast.shape import Shape


@dataclass(frozen=True, slots=True)
class UnderWay:
    shape: Shape
    started_at: float
    tokens: dict[str, int] = field(default_factory=dict)
    """Of the prompt for each request whose prompt it computes, or those it samples."""

    def seconds_left(self, prices: Prices, now: float) -> float:
        return max(0.0, self.started_at + prices.seconds(self.shape) - now)
