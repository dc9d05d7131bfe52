"""Row 17 of docs/reliability.md: the network between the router and a replica is cut, cut in one direction, and
slowed."""

import asyncio
import time
from collections.abc import Callable
from random import Random

import pytest

from tests.faults.callers import Callers, RouterClient, connected_client, golden_run, until
from tests.faults.figures import Figure
from tests.faults.history import History
from tests.faults.network import VirtualLink, virtual_links
from tests.faults.site import Host, Plan, Replica, Site, site
from tests.faults.verdict import put_verdict, states, until_serving

Doing = Callable[[VirtualLink], None]
CUTS: dict[str, tuple[Doing, Doing]] = {
    "cut link": (VirtualLink.cut, VirtualLink.mend),
    "lost answers": (VirtualLink.silence, VirtualLink.unsilence),
    "lost requests": (VirtualLink.deafen, VirtualLink.undeafen),
}


def plan_behind(links: list[VirtualLink]) -> Plan:
    hosts = {f"writer-{index}": Host(link.before, f"{link.there}:50151") for index, link in enumerate(links)}
    return Plan({"writer": 1 + len(links)}, hosts=hosts)


@pytest.mark.slow
def test_17_callers_receive_nothing_wrong_when_a_cable_fails(long: bool, figure: Figure) -> None:
    async def scenario(site: Site, link: VirtualLink) -> None:
        async with connected_client(site.address) as router:
            history = History(await golden_run(router, site.specialists))
            victim = site.replicas[0]
            async with Callers(router, history, Random(17), pause=0.02).calling(8) as callers:
                for what, (do, undo) in CUTS.items():
                    for _ in range(3 if long else 1):
                        noticed, back = await _cut(router, victim, link, callers, do, undo)
                        figure(17, f"{what}: time until the breaker opened", noticed, "s", "< 3 s", short="< 120 s")
                        figure(17, f"{what}: time until the replica serves again", back, "s", "< 20 s", short="< 120 s")
                await _slow_link(link, callers, victim, 20.0 if long else 2.0)
                await until_serving(router, victim)
            await put_verdict(17, router, history, figure)

    with virtual_links(1) as (link,), site(plan_behind([link])) as made:
        asyncio.run(scenario(made, link))


async def _cut(
    router: RouterClient, victim: Replica, link: VirtualLink, callers: Callers, do: Doing, undo: Doing
) -> tuple[float, float]:
    await until_serving(router, victim)
    await callers.answered(20)
    do(link)
    began = time.monotonic()
    try:
        await until(lambda: _is_open(router, victim))
        noticed = time.monotonic() - began
        await callers.answered(20)
    finally:
        undo(link)
    mended = time.monotonic()
    await until_serving(router, victim)
    return noticed, time.monotonic() - mended


async def _is_open(router: RouterClient, victim: Replica) -> bool:
    return (await states(router))[victim.name][1] == "open"


async def _slow_link(link: VirtualLink, callers: Callers, victim: Replica, seconds: float) -> None:
    link.slow()
    try:
        await asyncio.sleep(seconds)
        await callers.answered(20)
    finally:
        link.quicken()
