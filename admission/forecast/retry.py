"""When somebody who was refused would be let in."""

from dataclasses import dataclass
from typing import NamedTuple

from admission.forecast.entry import Entry
from admission.forecast.trial import Trial
from admission.forecast.walk import Later, Refill

MOST_SECONDS = 30.0
_SPREAD = 0.25
"""Those who were refused together come back spread over so much more than the time itself."""
_LEAST_SECONDS = 0.05
_MOST_LOOKS = 3
_LEAST_LOOKS = 2
_MOST_STEPS = 350
"""Entries that are looked at for one answer, however many are there: it is not to take longer than it is worth."""


class Found(NamedTuple):
    seconds: float
    """Until it would be let in."""
    sure: bool
    """Not only as far as was looked."""


@dataclass(frozen=True, slots=True)
class Return:
    """Asks again for later moments, as the known work drains and those of higher priority go on coming."""

    entry: Entry
    trial: Trial
    refill: Refill

    def look(self, guess: float) -> Found | None:
        """Around `guess`: twice as late until it would be let in, then between. None where it never would."""
        if self.trial.late_alone(self.entry):
            return None
        low, high, sure = 0.0, min(max(guess, _LEAST_SECONDS), MOST_SECONDS), False
        for _ in range(self._num_looks):
            at = (low + high) / 2 if sure else high
            if self._is_welcome(at):
                high, sure = at, True
            else:
                low, high = at, high if sure else min(at * 2, MOST_SECONDS)
            if low >= MOST_SECONDS or high <= _LEAST_SECONDS:
                break
        return Found(high, sure)

    @property
    def _num_looks(self) -> int:
        return max(_LEAST_LOOKS, min(_MOST_LOOKS, _MOST_STEPS // (1 + len(self.trial.books))))

    def _is_welcome(self, after: float) -> bool:
        return self._harms_nobody(after) and self._is_in_time(after)

    def _is_in_time(self, after: float) -> bool:
        trial, entry = self.trial, self.entry
        if entry.booking.deadline is None:
            return True
        walk = trial.walk(refill=self.refill, later=Later(entry, after), until=entry)
        return trial.own_late(walk, entry, after) <= 0

    def _harms_nobody(self, after: float) -> bool:
        trial = self.trial
        return not trial.timed or not trial.hurt(trial.walk(later=Later(self.entry, after)))


def jittered(seconds: float | None, draw: float) -> float | None:
    """`draw` is from [0, 1)."""
    return None if seconds is None else min(seconds, MOST_SECONDS / (1 + _SPREAD)) * (1 + _SPREAD * draw)
