"""Which shadows the share pays for: those that are only curious, none that a lane's fate depends on."""

from typing import Any

import pytest

from tests.router.shadow.world import order, world


@pytest.mark.parametrize(("why", "is_paid_for"), [("low_confidence", True), ("fresh_lane", False), ("demoted", False)])
async def test_a_lane_that_has_to_show_itself_costs_the_share_nothing(why: Any, is_paid_for: bool) -> None:
    async with world(budget=0.1, max_inflight=8) as (here, _, shadow):
        for _ in range(6):
            await here.ask(here.errand(order(why=why)))
            await here.settled()
        assert len(shadow.asked) == (1 if is_paid_for else 6), "one is given on trust"
        await here.ask(here.errand(order(why="low_confidence")))
        await here.settled()
        assert len(shadow.asked) == (1 if is_paid_for else 7), "what the others needed was not taken from it"
        here.check_sums()
