"""When a caller hangs up, whoever is asked, and what became of its ask."""

from collections.abc import Sequence
from time import perf_counter

from bench.serving.answer import Answer, End
from bench.serving.asks import Ask
from bench.serving.classes import CallerClass


def patience(caller: CallerClass, give_up: float) -> float:
    """Seconds since it was due. What is late is of no use, and an endpoint that knows no deadlines is spared it too."""
    return min(give_up, caller.total)


def hung_up(ask: Ask, due: float, give_up: float, pieces: Sequence[float], behind: float) -> Answer:
    """Expired at its deadline; failed where the caller had less patience than that."""
    seconds = patience(ask.caller, give_up)
    end: End = "expired" if seconds == ask.caller.total else "failed"
    why = f"no whole answer within {seconds:g} s"
    return Answer(ask, end, tuple(pieces), perf_counter() - due, len(pieces), why=why, behind=behind)
