"""Simulated time in which somebody may knock while a step is under way."""

from collections import deque
from collections.abc import Callable, Iterable

from bench.admission.offer import Offer
from octet.clock import ManualClock


class Knocks(ManualClock):
    """Sleeping is instant, and yet whoever arrives meanwhile is heard at the time of its arrival, in order."""

    def __init__(self, offers: Iterable[Offer] = (), hear: Callable[[Offer], object] = lambda offer: None) -> None:
        super().__init__()
        self._coming = deque(offers)
        self._hear = hear

    @property
    def next_at(self) -> float | None:
        return self._coming[0].at if self._coming else None

    def sleep(self, seconds: float) -> None:
        until = self.now() + seconds
        while self._coming and self._coming[0].at <= until:
            offer = self._coming.popleft()
            super().sleep(max(0.0, offer.at - self.now()))
            self._hear(offer)
        super().sleep(max(0.0, until - self.now()))

    def stay_away(self, who: Callable[[Offer], bool]) -> None:
        """They will not come after all."""
        self._coming = deque(offer for offer in self._coming if not who(offer))
