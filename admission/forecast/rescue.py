"""Who has to go after all, because somebody more important takes longer than was thought."""

from typing import NamedTuple

from admission.forecast.books import Books
from admission.forecast.entry import Entry
from admission.forecast.trial import Trial


class Rescue(NamedTuple):
    whom: str
    keys: tuple[str, ...]
    """Who has to go."""


def rescue(trial: Trial, books: Books) -> Rescue | None:
    """Those who have to go so that the first in rank of those who would be late is in time; None where nobody is to
    be or can be helped."""
    trial.walk()
    late = sorted((entry for entry in books.entries if _is_late(trial, entry)), key=lambda entry: entry.rank)
    for entry in late:
        beside = [other for other in books.entries if other.shed_before(entry) and other.begun_at < entry.finish_at]
        if beside:
            keys = _fewest(trial, entry, sorted(beside, key=lambda other: other.shed_first))
            return Rescue(entry.booking.key, tuple(keys)) if keys else None
    return None


def _fewest(trial: Trial, entry: Entry, beside: list[Entry]) -> list[str]:
    keys = [other.booking.key for other in beside]
    if _lateness(trial, entry, keys) > 0:  # the margin is lost, the deadline perhaps not
        return keys if trial.time_left(entry) >= entry.finish_at else []
    count = 1
    while count < len(keys) and _lateness(trial, entry, keys[:count]) > 0:
        count *= 2
    return keys[:count]


def _lateness(trial: Trial, entry: Entry, without: list[str]) -> float:
    trial.walk(without=without)
    return trial.late_by(entry, entry.finish_at)


def _is_late(trial: Trial, entry: Entry) -> bool:
    return trial.late_by(entry, entry.finish_at) > 0
