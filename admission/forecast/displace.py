"""Who has to go so that somebody more important can be answered in time."""

from dataclasses import dataclass

from admission.forecast.books import Books
from admission.forecast.entry import Entry
from admission.forecast.trial import Check, Trial
from admission.forecast.walk import Refill

_MOST_WALKS = 14
_MOST_STEPS = 2000
"""Entries that are walked over for one verdict: it is not to take longer than it is worth."""
_LEAST_WALKS = 7
_HASTE = 6.0
"""Where few walks are left to be taken, each step is so much larger than the one before."""


@dataclass(frozen=True, slots=True)
class Displacement:
    """Looks for as few of those who give way to the newcomer as make room for it."""

    entry: Entry
    trial: Trial
    refill: Refill
    already: tuple[str, ...]
    """Who has to go in any case."""
    first: Check
    """What is wrong where nobody else goes."""

    def among(self, books: Books) -> tuple[str, ...] | None:
        """None where even all of them would not be enough. First goes who is first in the order of `shed_first`."""
        lower = sorted((other for other in books.entries if other.shed_before(self.entry)), key=_order)
        everybody = tuple(other.booking.key for other in lower)
        if not lower or not _is_enough(self._check(everybody)):
            return None
        chosen = self._enough(lower)
        return everybody if chosen is None else self._fewest(chosen)

    @property
    def _most_walks(self) -> int:
        return max(_LEAST_WALKS, min(_MOST_WALKS, _MOST_STEPS // (1 + len(self.trial.books))))

    def _check(self, keys: tuple[str, ...]) -> Check:
        return self.trial.check(self.entry, keys, self.refill)

    def _enough(self, lower: list[Entry]) -> tuple[str, ...] | None:
        """The first few whose work is worth the delay, and more where that is not enough; None for lack of time."""
        chosen, check, effort = self.already, self.first, 1.0
        while not _is_enough(check):
            if self.trial.num_walks >= self._most_walks:
                return None
            late = max([check.own_late, *(hurt.late for hurt in check.hurt)])
            chosen += tuple(self._worth(effort * late, _in_the_way(self.entry, check, lower, chosen)))
            if self._most_walks < _MOST_WALKS:
                effort *= _HASTE
            check = self._check(chosen)
        return chosen

    def _worth(self, seconds: float, candidates: list[Entry]) -> list[str]:
        keys = []
        for other in candidates:
            keys.append(other.booking.key)
            seconds -= self.trial.work(other)
            if seconds <= 0:
                break
        return keys

    def _fewest(self, chosen: tuple[str, ...]) -> tuple[str, ...]:
        """Let those stay, the most valuable first, who need not go."""
        for key in reversed(chosen):
            if key in self.already or self.trial.num_walks >= self._most_walks:
                continue
            fewer = tuple(other for other in chosen if other != key)
            if _is_enough(self._check(fewer)):
                chosen = fewer
        return chosen


def _order(entry: Entry) -> tuple[float, ...]:
    return entry.shed_first


def _is_enough(check: Check) -> bool:
    return check.own_late <= 0 and not check.hurt


def _in_the_way(newcomer: Entry, check: Check, lower: list[Entry], chosen: tuple[str, ...]) -> list[Entry]:
    """Those to go next: who would be late if nothing else is wrong, else who begins before that is done by which the
    newcomer is judged."""
    gone = frozenset(chosen)
    left = [other for other in lower if other.booking.key not in gone]
    late = {hurt.entry.booking.key for hurt in check.hurt if hurt.entry.shed_before(newcomer)}
    if check.own_late <= 0 and len(late) == len(check.hurt):
        return [other for other in left if other.booking.key in late] or left
    return [other for other in left if other.begun_at < check.due] or left
