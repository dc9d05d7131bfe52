"""Every request has a shadow, and the specialist that gets the shadows hangs. No request may wait for it."""

import asyncio
from typing import Any

from router.quality.answer_tap import AnswerTap
from tests.router.serving.spy import hang
from tests.router.shadow import harness as harness_module
from tests.router.shadow.harness import answering, running_shadows

ROUND = 4
"""The number of concurrent requests."""


class WaitingTap(AnswerTap):
    """A tap with a deliberate bug: the primary's stream continues only when its shadow is done."""

    async def write(self, raw: bytes) -> None:
        await super().write(raw)
        while self._handle is not None and not self._handle.done:
            await asyncio.sleep(0.01)


async def are_isolated(num_rounds: int, seconds: float) -> bool:
    """Return whether requests are answered within `seconds` while their shadows hang forever."""
    primary = answering("all ", "good", seconds=0.001)
    num_shadows = num_rounds * ROUND
    async with running_shadows(primary, hang, timeout=3600, max_inflight=num_shadows) as (harness, _, shadow):
        await harness.send_last_report(shadow, max_running=num_shadows)
        try:
            async with asyncio.timeout(seconds):
                for _ in range(num_rounds):
                    alone = await asyncio.gather(*(harness.ask() for _ in range(ROUND)))
                    shadowed = await asyncio.gather(*(harness.ask(harness.make_task()) for _ in range(ROUND)))
                    assert [each[1:] for each in shadowed] == [each[1:] for each in alone]
        except TimeoutError:
            return False
        assert harness.shadows.counters.ordered == harness.shadows.num_inflight == num_shadows
        await harness.until(lambda: shadow.num_live == num_shadows)
        harness.check_untouched()
        return True


async def test_no_request_waits_for_a_hung_shadow() -> None:
    assert await are_isolated(num_rounds=15, seconds=60)


async def test_the_measurement_detects_a_request_that_waits_for_its_shadow(monkeypatch: Any) -> None:
    monkeypatch.setattr(harness_module, "AnswerTap", WaitingTap)
    assert not await are_isolated(num_rounds=1, seconds=1)
