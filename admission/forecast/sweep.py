"""What is to change between two verdicts: who has to go after all, who may come back."""

from dataclasses import dataclass
from typing import NamedTuple

from admission.forecast.books import Books
from admission.forecast.entry import Entry
from admission.forecast.rescue import rescue
from admission.forecast.trial import NOBODY, Trial
from admission.forecast.walk import NOBODY_ELSE

MOST_BACK = 4
"""Of those who were set aside, that come back with one sweep: each costs a look at everybody's end."""


class Sweep(NamedTuple):
    shed: tuple[str, ...] = ()
    aside: tuple[str, ...] = ()
    """To wait beside the line; out of it in the books as well."""
    beneficiary: str = ""
    """For whom."""
    back: tuple[str, ...] = ()
    """To go back into the line, where they are in the books already."""


@dataclass(frozen=True, slots=True)
class Leaving:
    shed: tuple[str, ...]
    aside: tuple[str, ...]


def parted(keys: tuple[str, ...], books: Books) -> Leaving:
    """Who gives way and has no deadline waits beside the line; nobody waits for a shadow, and who has a deadline is
    told at once that it will not be kept."""
    aside = tuple(key for key in keys if (entry := books.get(key)) is not None and _can_wait(entry))
    return Leaving(tuple(key for key in keys if key not in aside), aside)


def _can_wait(entry: Entry) -> bool:
    return entry.booking.deadline is None and not entry.booking.shadow


def look(trial: Trial, books: Books, sure: float) -> Sweep:
    """Whoever is more important and would be late is helped first; where nobody is, those go who wait in vain."""
    rescued = rescue(trial, books)
    if rescued is None:
        return Sweep(shed=tuple(in_vain(trial, books, sure)))
    leaving = parted(rescued.keys, books)
    return Sweep(leaving.shed, leaving.aside, rescued.whom)


def in_vain(trial: Trial, books: Books, sure: float) -> list[str]:
    """In vain waits whose answer cannot be done in time any more; where it may be short, whose first token cannot."""
    if trial.num_walks > 1:  # the last one was without some of them
        trial.walk()
    return [
        entry.booking.key
        for entry in books.line
        if entry.booking.deadline is not None
        and trial.now + (entry.finish_at if entry.booking.exact else entry.first_at) * sure > entry.booking.deadline
    ]


def is_welcome(entry: Entry, trial: Trial) -> bool:
    """Whether it may come back: it makes nobody late to whom it would not have to give way."""
    hurt = trial.check(entry, NOBODY, NOBODY_ELSE).hurt
    return all(other.entry.shed_before(entry) for other in hurt)
