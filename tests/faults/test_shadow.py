"""Row 30 of docs/reliability.md: a shadow specialist hangs and dies; callers of the primary do not notice."""

import asyncio
from random import Random

import pytest

from octet.v1 import operator_pb2 as wire
from tests.faults.callers import LONGEST, RouterClient, connected_client, golden_run
from tests.faults.figures import Figure
from tests.faults.history import Golden, History, Question
from tests.faults.latency import Comparison, record_slow_periods_if
from tests.faults.site import Plan, Site, site
from tests.faults.verdict import put_verdict, until_serving

SETTINGS = """
intents: {tell: {shadow_threshold: 1.0}}
shadow: {budget: 1, max_inflight: 64, timeout: 5s}
"""
ABOUT = {
    "left": '{describe: Numbers., examples: ["question number seven", "question number eight"], fallback: right}',
    "right": '{describe: Recipes., examples: ["bake a cake", "cook a soup"]}',
}
"""Examples that make the router send these requests to `left` almost certainly, with a shadow copy to `right`."""


@pytest.mark.slow
def test_30_a_shadow_that_hangs_or_dies_delays_no_caller(long: bool, figure: Figure) -> None:
    async def scenario(site: Site) -> None:
        (shadow,) = site.of("right")
        seconds = 15.0 if long else 2.0
        async with connected_client(site.address) as router:
            golden = await golden_run(router, site.specialists)
            await _send_unnamed_requests(router, golden, 2.0, seed=0)
            with record_slow_periods_if(long) as slow_periods:
                usual = await _send_unnamed_requests(router, golden, seconds / 2, seed=1)
                sent = await _num_sent(router)
                assert sent > 0, "no shadow copies were sent"
                shadow.process.stop()
                try:
                    hung = await _send_unnamed_requests(router, golden, seconds, seed=2)
                finally:
                    shadow.process.resume()
                await until_serving(router, *site.replicas)
                shadow.process.kill()
                dead = await _send_unnamed_requests(router, golden, seconds, seed=3)
                shadow.process.restart()
                await until_serving(router, *site.replicas)
                after = await _send_unnamed_requests(router, golden, seconds / 2, seed=4)
            comparison = Comparison(30, figure, slow_periods, long)
            comparison.put_lasting(usual, after)
            usual.accounts += after.accounts
            accounts = usual.accounts + hung.accounts + dead.accounts
            await put_verdict(30, router, History(golden, accounts), figure)
            failed = len(hung.failed) + len(dead.failed)
            figure(30, "requests failed by a shadow", failed, "requests", "== 0")
            for ill, ended in (("hangs", hung), ("is dead", dead)):
                comparison.put_longer(f"p99 TTFT while the shadow {ill}", 99, usual, ended, "<= 1.2")

    with site(Plan({"left": 1, "right": 1}, SETTINGS, about=ABOUT)) as made:
        asyncio.run(scenario(made))


async def _send_unnamed_requests(router: RouterClient, golden: Golden, seconds: float, seed: int) -> History:
    """Send twenty requests a second that name no specialist. Return their history."""
    history, random = History(golden), Random(seed)
    prompts = [prompt for name, prompt in golden if name == "left"]

    async def ask(prompt: str, length: int) -> None:
        asked = Question("left", prompt, length)
        history.accounts.append(await router.ask(asked, force_specialists=[], intent="tell"))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(round(20 * seconds)):
            tasks.create_task(ask(random.choice(prompts), random.randint(1, LONGEST)))
            await asyncio.sleep(0.05)
    return history


async def _num_sent(router: RouterClient) -> int:
    report = await router.operate("ShadowReport", wire.ShadowReportRequest(), wire.ShadowReportResponse)
    return int(report.counts.sent)
