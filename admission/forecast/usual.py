"""What else is to be expected: how much is asked for and let in, and what the replica's time goes into."""

from admission.forecast.flow import Flow
from admission.forecast.walk import Refill

_SEEN_STEPS = 0.98
"""What each step leaves of the past."""
_MOST_HIGHER = 0.9
"""Something is always left for the others."""


class Usual:
    def __init__(self) -> None:
        self._asked = Flow(3.0)
        self._let_in = Flow(12.0)
        self._let_in_long = Flow(30.0)
        self._prefill = self._decode = self._rows = 0.0

    def ask(self, now: float, priority: int, seconds: float) -> None:
        """So much work was asked for."""
        self._asked.add(now, priority, seconds)

    def let_in(self, now: float, priority: int, seconds: float) -> None:
        self._let_in.add(now, priority, seconds)
        self._let_in_long.add(now, priority, seconds)

    def step(self, prefill: bool, rows: int, seconds: float) -> None:
        self._prefill *= _SEEN_STEPS
        self._decode *= _SEEN_STEPS
        self._rows *= _SEEN_STEPS
        if prefill:
            self._prefill += seconds
        else:
            self._decode += seconds
            self._rows += rows * seconds

    def load(self, now: float, priority: int | None = None) -> float:
        """Seconds of work a second that are asked for, of this priority and those above."""
        return self._asked.from_priority(now, priority)

    def refill(self, now: float, priority: int | None = None) -> Refill:
        """Who may be expected to share the time, of this priority and those above."""
        return self._refill(self.load(now, priority), 0.0 if priority is None else self._higher(now, priority))

    def is_topmost(self, now: float, priority: int) -> bool:
        """Whether nobody above asks."""
        return not self.load(now, priority + 1)

    def share_above(self, now: float, priority: int) -> float:
        """Of the time, what those above take as long as one can remember, and not in a burst alone."""
        long = self._let_in_long.from_priority(now, priority + 1)
        return min(long, self._higher(now, priority))

    def _higher(self, now: float, priority: int) -> float:
        """The share of the time that those above take: what was let in, as long as there is more of it."""
        let_in = self._let_in.from_priority(now, priority + 1)
        return min(_MOST_HIGHER, let_in, self.load(now, priority + 1))

    def _refill(self, load: float, higher: float) -> Refill:
        busy = self._prefill + self._decode
        if self._decode <= 0:
            return Refill(higher=higher)
        load = min(1.0, load)
        return Refill(load * self._rows / self._decode, load * self._prefill / busy, higher)
