"""Who has to go so that somebody more important can be answered in time."""

from dataclasses import dataclass

from admission.forecast.books import Books
from admission.forecast.entry import Entry
from admission.forecast.trial import Check, Trial
from admission.forecast.walk import Refill

_MOST_WALKS = 14
"""A verdict is not to take longer than it is worth."""


@dataclass(frozen=True, slots=True)
class Displacement:
    """Looks for as few of those who give way to the newcomer as make room for it."""

    entry: Entry
    trial: Trial
    refill: Refill
    already: tuple[str, ...]
    """Who has to go in any case."""

    def among(self, books: Books) -> tuple[str, ...] | None:
        """None where even all of them would not be enough. First goes who is first in the order of `shed_first`."""
        lower = sorted((other for other in books.entries if other.shed_before(self.entry)), key=_order)
        everybody = tuple(other.booking.key for other in lower)
        if not lower or not _is_enough(self._check(everybody)):
            return None
        chosen = self._enough(lower)
        return everybody if chosen is None else self._fewest(chosen)

    def _check(self, keys: tuple[str, ...]) -> Check:
        return self.trial.check(self.entry, keys, self.refill)

    def _enough(self, lower: list[Entry]) -> tuple[str, ...] | None:
        """The first few whose work is worth the delay, and more where that is not enough; None for lack of time."""
        chosen = self.already
        while self.trial.num_walks < _MOST_WALKS:
            check = self._check(chosen)
            if _is_enough(check):
                return chosen
            late = max([check.own_late, *(hurt.late for hurt in check.hurt)])
            chosen += tuple(self._worth(late, _in_the_way(self.entry, check, lower, chosen)))
        return None

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
            if key in self.already or self.trial.num_walks >= _MOST_WALKS:
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
    """Those to go next: who would be late if nothing else is wrong, else who begins before the newcomer is done."""
    left = [other for other in lower if other.booking.key not in chosen]
    late = {hurt.entry.booking.key for hurt in check.hurt if hurt.entry.shed_before(newcomer)}
    if check.own_late <= 0 and len(late) == len(check.hurt):
        return [other for other in left if other.booking.key in late] or left
    return [other for other in left if check.begins[other.booking.key] < check.ends] or left
