"""When somebody who was refused would be let in."""

from dataclasses import dataclass

from admission.forecast.books import Books
from admission.forecast.entry import Entry
from admission.forecast.trial import Trial
from admission.forecast.walk import Later, Refill

MOST_SECONDS = 30.0
_SPREAD = 0.25
"""Those who were refused together come back spread over so much more than the time itself."""
_LEAST_SECONDS = 0.05
_HALVINGS = 2


@dataclass(frozen=True, slots=True)
class Return:
    """Asks again for later moments, as the known work drains and those of higher priority go on coming."""

    entry: Entry
    trial: Trial
    refill: Refill

    def seconds(self, least: float) -> float | None:
        """Until it would be let in, `least` being a first guess; None where it never would."""
        if self.trial.late_alone(self.entry):
            return None
        low, high = 0.0, min(max(least, _LEAST_SECONDS), MOST_SECONDS)
        while not self._is_welcome(high):
            if high >= MOST_SECONDS:
                return MOST_SECONDS
            low, high = high, min(high * 2, MOST_SECONDS)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._is_welcome(middle) else (middle, high)
        return high

    def seconds_to_a_place(self, books: Books) -> float:
        """Until the first of those who are there has ended."""
        self.trial.walk(refill=self.refill)
        return min((entry.finish_at for entry in books.entries), default=0.0)

    def _is_welcome(self, after: float) -> bool:
        later = Later(self.entry, after)
        if self.trial.own_late(self.trial.walk(refill=self.refill, later=later), self.entry, after) > 0:
            return False
        return not self.trial.timed or not self.trial.hurt(self.trial.walk(later=later))


def jittered(seconds: float | None, draw: float) -> float | None:
    """`draw` is from [0, 1)."""
    return None if seconds is None else min(seconds, MOST_SECONDS / (1 + _SPREAD)) * (1 + _SPREAD * draw)
