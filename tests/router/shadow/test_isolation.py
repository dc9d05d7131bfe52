"""A shadow for every request, and the specialist that gets them hangs: nobody who waits notices."""

import asyncio
import time
from typing import Any

from router.quality import shadow as besides
from router.quality.shadow import AnswerTap
from tests.router.serving.spy import hang
from tests.router.shadow import world as worlds
from tests.router.shadow.world import World, saying, world
from tests.specialist.server.harness import run

HANGS = 1.5
"""Seconds until a hung shadow is given up: whoever waits for one takes at least so long."""
NOISE = 0.5
"""Seconds that a busy machine may take from anybody."""


class Entangled(AnswerTap):
    """The mistake: the primary's stream goes on when its shadow is over."""

    async def write(self, raw: bytes) -> None:
        await super().write(raw)
        while self._handle is not None and not self._handle.done:
            await asyncio.sleep(0.01)


async def seconds_of(here: World, shadowed: bool) -> float:
    began = time.monotonic()
    await here.ask(here.errand() if shadowed else None)
    return time.monotonic() - began


def p90(seconds: list[float]) -> float:
    """The rest may have been held up by the machine."""
    return sorted(seconds)[int(len(seconds) * 0.9)]


def isolated(alone: list[float], shadowed: list[float]) -> bool:
    return p90(shadowed) < p90(alone) + NOISE


async def measured(num_rounds: int) -> tuple[list[float], list[float]]:
    """Requests without shadows and with them, by turns."""
    primary = saying("all ", "good", seconds=0.001)
    alone, shadowed = list[float](), list[float]()
    async with world(primary, hang, timeout=HANGS, max_inflight=64) as (here, _, shadow):
        for _ in range(num_rounds):
            alone += await asyncio.gather(*(seconds_of(here, False) for _ in range(4)))
            shadowed += await asyncio.gather(*(seconds_of(here, True) for _ in range(4)))
        assert here.shadows.counters.ordered == 4 * num_rounds
        assert shadow.asked, "it hangs indeed"
        here.check_untouched()
    return alone, shadowed


def test_nobody_waits_for_a_shadow_that_hangs() -> None:
    assert isolated(*run(measured(60)))


def test_a_request_would_wait_without_isolation(monkeypatch: Any) -> None:
    """The test above can fail."""
    monkeypatch.setattr(worlds, "AnswerTap", Entangled)
    assert issubclass(Entangled, besides.AnswerTap)
    assert not isolated(*run(measured(1)))
