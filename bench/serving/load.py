"""An open-loop load: every ask begins when it is due, whether or not others have been answered."""

import asyncio
import gc
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter, process_time

from bench.serving.answer import Answer, Caller
from bench.serving.asks import Ask

_AHEAD = 0.2
"""Seconds before the first ask can be due."""


@dataclass(frozen=True, slots=True)
class Round:
    """One load on one system."""

    system: str
    seconds: float
    """Of arrivals."""
    lasted: float
    """From the beginning to the last answer."""
    answers: tuple[Answer, ...]
    generator: float
    """Seconds of CPU that the load generator took itself."""
    load: str = ""
    """Which one, where there are several."""
    waiting: float | None = None
    """Seconds of CPU that the systems took which were not asked, where they are the bench's own."""


async def play(system: str, caller: Caller, asks: Sequence[Ask], seconds: float) -> Round:
    """The collector waits until it is over: its pauses would be the endpoint's."""
    gc.collect()
    gc.disable()
    try:
        cpu, start = process_time(), perf_counter() + _AHEAD
        calls = []
        for ask in asks:
            due = start + ask.at
            while (wait := due - perf_counter()) > 0:
                await asyncio.sleep(wait)
            calls.append(asyncio.ensure_future(caller.ask(ask, due)))
        answers = await asyncio.gather(*calls)
        return Round(system, seconds, perf_counter() - start, tuple(answers), process_time() - cpu)
    finally:
        gc.enable()
