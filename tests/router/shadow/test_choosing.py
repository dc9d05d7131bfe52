"""A shadow whose specialist the classifier must choose waits for neither the caller nor the classifier's queue."""

import asyncio

import pytest

from router.quality.answer_tap import MOST_CHOOSING
from router.quality.shadow_copy import ShadowTask
from tests.router.shadow.harness import SHADOW, answering, order, running_shadows


@pytest.mark.parametrize("late", [False, True])
async def test_the_shadow_is_sent_when_it_is_chosen_and_the_answer_has_begun(late: bool) -> None:
    has_begun = asyncio.Event()
    async with running_shadows(answering("a", "b", seconds=0.05)) as (harness, _, shadow):

        async def choose() -> ShadowTask:
            if late:
                await has_begun.wait()
            return harness.make_task(order(why="rule_routed"))

        async def write(raw: bytes) -> None:
            if raw[:1] == b"\x12":
                has_begun.set()

        receipt = await harness.answer(write, choose)
        sent = receipt.between.shadow
        assert (sent.specialist, sent.why, sent.replica) == (SHADOW, "rule_routed", f"{SHADOW}-0")
        await harness.settled()
        assert len(shadow.asked) == len(harness.events.comparisons) == 1
        harness.check_sums()


async def test_an_answer_that_ends_first_sheds_its_shadow() -> None:
    async with running_shadows() as (harness, _, shadow):

        async def choose() -> ShadowTask | None:
            await asyncio.Event().wait()
            return None

        receipt = await harness.answer(_nowhere, choose)
        assert (receipt.between.shadow.outcome, receipt.between.shadow.reason) == ("shed", "no_choice")
        assert not receipt.between.shadow.specialist and not receipt.between.shadow.replica
        await harness.settled()
        assert not shadow.asked and not harness.shadows.choosing
        harness.check_sums()


async def test_failure_to_choose_affects_only_the_shadow() -> None:
    async with running_shadows() as (harness, _, shadow):

        async def fail() -> ShadowTask | None:
            raise RuntimeError("a mistake")

        assert await harness.ask(fail)
        await harness.settled()
        assert harness.shadows.counters.ended == {("shed", "no_choice"): 1} and not shadow.asked
        assert len(harness.events.judgements) == 1


async def test_few_shadows_ask_the_classifier_at_once() -> None:
    asked, may_end = 0, asyncio.Event()
    slow = answering("a", "b", seconds=0.1)
    async with running_shadows(slow, budget=1.0, max_inflight=64) as (harness, _, _shadow):

        async def choose() -> ShadowTask | None:
            nonlocal asked
            asked += 1
            await may_end.wait()
            return None

        await asyncio.gather(*(harness.ask(choose) for _ in range(3 * MOST_CHOOSING)))
        assert asked == MOST_CHOOSING
        assert harness.shadows.counters.ended["shed", "no_slot"] == 2 * MOST_CHOOSING
        await harness.settled()
        assert not harness.shadows.choosing


async def test_without_credit_the_classifier_is_not_asked() -> None:
    async with running_shadows(budget=0.0) as (harness, _, _shadow):

        async def choose() -> ShadowTask | None:
            raise AssertionError("asked")

        await harness.ask(choose)
        assert harness.shadows.counters.ended == {("shed", "no_budget"): 1}


async def _nowhere(_: bytes) -> None: ...
