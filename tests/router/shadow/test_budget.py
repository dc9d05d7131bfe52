"""The budget pays for shadows of uncertain decisions, but not for shadows that evaluate a lane."""

from typing import Any

import pytest

from tests.router.shadow.harness import order, running_shadows


@pytest.mark.parametrize(("why", "is_budgeted"), [("low_confidence", True), ("fresh_lane", False), ("demoted", False)])
async def test_only_shadows_for_low_confidence_use_the_budget(why: Any, is_budgeted: bool) -> None:
    async with running_shadows(budget=0.1, max_inflight=8) as (harness, _, shadow):
        for _ in range(6):
            await harness.ask(harness.make_task(order(why=why)))
            await harness.settled()
        assert len(shadow.asked) == (1 if is_budgeted else 6), "the budget must start with one shadow"
        await harness.ask(harness.make_task(order(why="low_confidence")))
        await harness.settled()
        assert len(shadow.asked) == (1 if is_budgeted else 7), "other shadows must take nothing from the budget"
        harness.check_sums()
