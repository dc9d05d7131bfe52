"""When somebody who was refused would be let in."""

from dataclasses import dataclass

from admission.forecast.entry import Entry
from admission.forecast.trial import Trial
from admission.forecast.walk import Later, Refill

MOST_SECONDS = 30.0
_SPREAD = 0.25
"""Those who were refused together come back spread over so much more than the time itself."""
_LEAST_SECONDS = 0.05
_HALVINGS = 2
_MOST_STEPS = 700
"""Entries that are walked over for one answer, however many are there: it is not to take longer than it is worth."""
_LEAST_WALKS = 2


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
        last = self.trial.num_walks + max(_LEAST_WALKS, _MOST_STEPS // (1 + len(self.trial.books)))
        low, high = 0.0, min(max(least, _LEAST_SECONDS), MOST_SECONDS)
        while not self._is_welcome(high):
            low, high = high, min(high * 2, MOST_SECONDS)
            if low >= MOST_SECONDS or self.trial.num_walks >= last:
                return high
        for _ in range(_HALVINGS):
            if self.trial.num_walks >= last:
                break
            middle = (low + high) / 2
            low, high = (low, middle) if self._is_welcome(middle) else (middle, high)
        return high

    def _is_welcome(self, after: float) -> bool:
        later = Later(self.entry, after)
        trial, entry = self.trial, self.entry
        if entry.booking.deadline is not None:
            walk = trial.walk(refill=self.refill, later=later, until=entry)
            if trial.own_late(walk, entry, after) > 0:
                return False
        return not trial.timed or not trial.hurt(trial.walk(later=later))


def jittered(seconds: float | None, draw: float) -> float | None:
    """`draw` is from [0, 1)."""
    return None if seconds is None else min(seconds, MOST_SECONDS / (1 + _SPREAD)) * (1 + _SPREAD * draw)
