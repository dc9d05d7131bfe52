"""What a system does at most: rates are shares of it."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from bench.serving.answer import Caller
from bench.serving.asks import Ask
from bench.serving.classes import CallerClass
from bench.serving.load import Round, play
from bench.serving.usage import ServeMistake

CROWD, CROWDS = 64, 3
"""The machine may be shared: one crowd alone may meet a fast moment, or a slow one."""
PATIENT = CallerClass("crowd", 1.0, 5, 120.0, 120.0)


async def capacity_of(system: str, caller: Caller, crowds: Sequence[Sequence[Ask]]) -> float:
    """Requests a second, the median of all crowds but the first, which warms up. Raises ServeMistake."""
    rounds = [await play(system, caller, at_once(crowd), 1.0) for crowd in crowds]
    found = median(map(rate_of, rounds[1:]))
    if not found:
        raise ServeMistake(f"{system}: answered nobody of a crowd: its capacity is not known")
    return found


def at_once(asks: Sequence[Ask]) -> list[Ask]:
    """Nobody of a crowd is in a hurry: who is refused would not be work."""
    return [replace(ask, at=0.0, caller=PATIENT) for ask in asks]


def rate_of(crowd: Round) -> float:
    """From their arrival to the last answer: prompts are work as well as answers."""
    ends = [answer.total for answer in crowd.answers if answer.end == "answered"]
    return len(ends) / max(ends) if ends else 0.0
