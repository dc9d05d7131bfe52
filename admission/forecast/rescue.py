"""Who has to go after all, because somebody more important takes longer than was thought."""

from typing import NamedTuple

from admission.forecast.books import Books
from admission.forecast.entry import Entry
from admission.forecast.trial import Trial, times_of

_MOST_HELPED = 4
"""Of those who would be late, that are looked at: each costs some walks."""
_MOST_LOOKS = 4
"""At who takes the seats of those who go."""


class Rescue(NamedTuple):
    whom: str
    keys: tuple[str, ...]
    """Who has to go."""


def rescue(trial: Trial, books: Books) -> Rescue | None:
    """Those who have to go so that the first in rank of those who would be late and can be helped is in time; None
    where nobody is to be or can be helped."""
    trial.walk()
    late = sorted((entry for entry in books.entries if _is_late(trial, entry)), key=lambda entry: entry.rank)
    num_looked = 0
    for entry in late:
        lower = [other for other in books.entries if other.shed_before(entry)]
        if not lower:
            continue
        if num_looked == _MOST_HELPED:
            break
        num_looked += 1
        keys = _fewest(trial, entry, _beside(trial, entry, lower))
        if keys:
            return Rescue(entry.booking.key, tuple(keys))
    return None


def _beside(trial: Trial, entry: Entry, lower: list[Entry]) -> list[str]:
    """Those who would begin before it ends; behind them those who would do so in their seats. First goes who is first
    in the order of `shed_first`."""
    keys: list[str] = []
    for _ in range(_MOST_LOOKS):
        trial.walk(without=frozenset(keys))
        more = [other for other in lower if other.begun_at < entry.finish_at]
        lower = [other for other in lower if other.begun_at >= entry.finish_at]
        keys += [other.booking.key for other in sorted(more, key=lambda other: other.shed_first)]
        if not more or not lower:
            return keys
    return keys + [other.booking.key for other in lower]


def _fewest(trial: Trial, entry: Entry, keys: list[str]) -> list[str]:
    if not keys:
        return []
    if _lateness(trial, entry, keys) > 0:  # the margin is lost, the deadline perhaps not
        return keys if trial.slack(entry, times_of(entry)) >= 0 else []
    count = 1
    while count < len(keys) and _lateness(trial, entry, keys[:count]) > 0:
        count *= 2
    return keys[:count]


def _lateness(trial: Trial, entry: Entry, without: list[str]) -> float:
    trial.walk(without=frozenset(without))
    return trial.late_by(entry, times_of(entry))


def _is_late(trial: Trial, entry: Entry) -> bool:
    return trial.late_by(entry, times_of(entry)) > 0
