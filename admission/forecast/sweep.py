"""What is to change between two verdicts: who has to go after all, who may come back."""

from dataclasses import dataclass
from typing import NamedTuple

from admission.forecast.books import Books
from admission.forecast.entry import Entry
from admission.forecast.rescue import rescue
from admission.forecast.trial import Times, Trial

SWEEP_SECONDS = 0.1
"""Between two looks at those who wait."""
HOPEFUL_SECONDS = 1.0
"""Between two looks, at most, whether one that was set aside could still be in time."""
TIME_TO_WAIT = 3.0
"""Who has so many times what it takes alone can wait for others."""
MOST_BACK = 4
"""Of those who were set aside, that come back with one sweep: each costs a verdict."""


class Sweep(NamedTuple):
    shed: tuple[str, ...] = ()
    aside: tuple[str, ...] = ()
    """To wait beside the line; out of it in the books as well."""
    beneficiary: str = ""
    """For whom."""
    back: tuple[str, ...] = ()
    """To go back into the line, where they are in the books already."""
    doubtful: frozenset[str] = frozenset()
    """Who seems to wait in vain: one step that stalls says little about the next."""


@dataclass(frozen=True, slots=True)
class Leaving:
    shed: tuple[str, ...]
    aside: tuple[str, ...]


def parted(keys: tuple[str, ...], books: Books, trial: Trial) -> Leaving:
    """Who gives way and has time waits beside the line; who has none is told at once that it will not be in time.
    Nobody waits for a shadow."""
    aside = tuple(key for key in keys if (entry := books.get(key)) is not None and _can_wait(entry, trial))
    return Leaving(tuple(key for key in keys if key not in aside), aside)


def _can_wait(entry: Entry, trial: Trial) -> bool:
    if entry.booking.shadow or not entry.timed:
        return not entry.booking.shadow
    return trial.has_time_for(entry, TIME_TO_WAIT)


def look(trial: Trial, books: Books, sure: float, doubtful: frozenset[str]) -> Sweep:
    """Whoever is more important and would be late is helped first; where nobody is, those go who wait in vain and were
    doubtful before."""
    rescued = rescue(trial, books)
    if rescued is None:
        vain = in_vain(trial, books, sure)
        return Sweep(shed=tuple(key for key in vain if key in doubtful), doubtful=frozenset(vain))
    leaving = parted(rescued.keys, books, trial)
    return Sweep(leaving.shed, leaving.aside, rescued.whom)


def in_vain(trial: Trial, books: Books, sure: float) -> list[str]:
    """In vain waits whose answer cannot be done in time any more; where it may be short, or has a deadline of its own,
    whose first token cannot."""
    if trial.num_walks > 1:  # the last one was without some of them
        trial.walk()
    return [entry.booking.key for entry in books.line if trial.slack(entry, _soonest(entry, sure)) < 0]


def _soonest(entry: Entry, sure: float) -> Times:
    end = entry.finish_at if entry.booking.exact else entry.first_at
    return Times(entry.first_at * sure, end * sure)


def is_lost(entry: Entry, trial: Trial) -> bool:
    """Whether one that was set aside could not be in time any more. Who could, and has time to spare, is not asked
    again at every sweep: with many aside, that would be most of it."""
    if trial.now < entry.hopeful_until:
        return False
    slack = trial.slack_alone(entry, SWEEP_SECONDS)
    entry.hopeful_until = trial.now + min(slack / 2, HOPEFUL_SECONDS)
    return slack < 0
