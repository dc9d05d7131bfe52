"""When a caller hangs up, whoever is asked, and what became of its ask."""

import asyncio
from collections.abc import Sequence
from time import perf_counter

from bench.serving.answer import Answer, End
from bench.serving.asks import Ask


class Patience:
    """Of one caller. What is late is of no use, and an endpoint that knows no deadlines is spared it too. Belongs to
    the event loop; `timer` is the context of the call."""

    def __init__(self, ask: Ask, due: float, give_up: float, behind: float) -> None:
        """`due` and `give_up` are seconds; `behind`, how late the call is."""
        self._ask = ask
        self._due = due
        self._behind = behind
        self._first = min(give_up, ask.caller.ttft)
        self._whole = min(give_up, ask.caller.total)
        self._until = self._first
        self.timer = asyncio.timeout(self._left())

    def hears(self) -> None:
        """The first piece has come: it waits for the others."""
        self._until = self._whole
        self.timer.reschedule(asyncio.get_running_loop().time() + self._left())

    def hung_up(self, pieces: Sequence[float]) -> Answer:
        """Expired at its deadline; failed where the caller had less patience than that."""
        caller = self._ask.caller
        end: End = "expired" if self._until == (caller.total if pieces else caller.ttft) else "failed"
        why = f"no {'whole answer' if pieces else 'token'} within {self._until:g} s"
        total = perf_counter() - self._due
        return Answer(self._ask, end, tuple(pieces), total, len(pieces), why=why, behind=self._behind)

    def _left(self) -> float:
        return self._due + self._until - perf_counter()
