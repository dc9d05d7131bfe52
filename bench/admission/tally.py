"""Outcomes added up."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bench.admission.outcome import ENDS, Outcome


@dataclass(frozen=True, slots=True)
class Tally:
    """Of one class of priority, or of all."""

    offered: int
    ends: Counter[str]
    """How many by end. They add up to what was offered."""
    refusals: Counter[str]
    """How many by reason. They add up to the refused."""
    answers: float
    """Answered in time, a second."""
    tokens: float
    """Tokens of theirs, prompts and answers, a second."""
    work: float
    """Lone work of theirs, a second: what capacity is measured in."""

    @property
    def admitted(self) -> int:
        return self.offered - self.ends["refused"]


def tally(outcomes: Sequence[Outcome], window: tuple[float, float], keep: Callable[[Outcome], bool]) -> Tally:
    """Counts are of all outcomes kept; rates of what was answered within the window."""
    kept = [outcome for outcome in outcomes if keep(outcome)]
    begin, end = window
    good = [each.offer for each in kept if each.end == "in time" and begin <= each.at < end]
    return Tally(
        offered=len(kept),
        ends=Counter(dict.fromkeys(ENDS, 0) | Counter(each.end for each in kept)),
        refusals=Counter(each.reason for each in kept if each.end == "refused"),
        answers=len(good) / (end - begin),
        tokens=sum(offer.tokens for offer in good) / (end - begin),
        work=sum(offer.work for offer in good) / (end - begin),
    )


def by_class(outcomes: Sequence[Outcome], priorities: Iterable[int], window: tuple[float, float]) -> dict[int, Tally]:
    return {
        priority: tally(outcomes, window, lambda each, priority=priority: each.offer.priority == priority)  # type: ignore[misc]
        for priority in priorities
    }
