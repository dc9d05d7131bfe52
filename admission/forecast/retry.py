"""When somebody who was refused would be let in."""

from dataclasses import dataclass
from math import sqrt

from admission.forecast.entry import Entry
from admission.forecast.trial import Trial
from admission.forecast.walk import Later, Refill

MOST_SECONDS = 30.0
_SPREAD = 0.25
"""Those who were refused together come back spread over so much more than the time itself."""
_LEAST_SECONDS = 0.05
_CLOSE = 1.2
"""Two times that are not worth another look between them."""
_MOST_LOOKS = 3
_LEAST_LOOKS = 2
_MOST_STEPS = 350
"""Entries that are looked at for one answer, however many are there: it is not to take longer than it is worth."""


@dataclass(frozen=True, slots=True)
class Return:
    """Asks again for later moments, as the known work drains and those of higher priority go on coming."""

    entry: Entry
    trial: Trial
    refill: Refill

    def seconds(self, late: float) -> float | None:
        """Until it would be let in, being late by so much now; None where it never would.

        Not before that time is over, and not after everybody else has gone: looked for between the two, by what lies
        between them in proportion.
        """
        if self.trial.late_alone(self.entry):
            return None
        high = min(max(self.trial.seconds_to_the_end(), _LEAST_SECONDS), MOST_SECONDS)
        low = min(max(late, _LEAST_SECONDS), high)
        for _ in range(self._num_looks):
            if high < low * _CLOSE:
                break
            at = sqrt(low * high)
            low, high = (low, at) if self._is_welcome(at) else (at, high)
        return high

    @property
    def _num_looks(self) -> int:
        return max(_LEAST_LOOKS, min(_MOST_LOOKS, _MOST_STEPS // (1 + len(self.trial.books))))

    def _is_welcome(self, after: float) -> bool:
        return self._harms_nobody(after) and self._is_in_time(after)

    def _is_in_time(self, after: float) -> bool:
        trial, entry = self.trial, self.entry
        if not entry.timed:
            return True
        walk = trial.walk(refill=self.refill, later=Later(entry, after), until=entry)
        return trial.own_late(walk, entry, after) <= 0

    def _harms_nobody(self, after: float) -> bool:
        trial = self.trial
        return not trial.timed or not trial.hurt(trial.walk(later=Later(self.entry, after)))


def jittered(seconds: float | None, draw: float) -> float | None:
    """`draw` is from [0, 1)."""
    return None if seconds is None else min(seconds, MOST_SECONDS / (1 + _SPREAD)) * (1 + _SPREAD * draw)
