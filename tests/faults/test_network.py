"""Row 17: the network between the router and a replica is cut, cut in one direction, and slowed."""

import asyncio
import time
from collections.abc import Callable
from random import Random

import pytest

from tests.faults.callers import Callers, Line, golden_run, line, until
from tests.faults.figures import Figure
from tests.faults.history import History
from tests.faults.network import Cable, cables
from tests.faults.site import Host, Plan, Replica, Site, site
from tests.faults.verdict import put_verdict, states, until_serving

Doing = Callable[[Cable], None]
CUTS: dict[str, tuple[Doing, Doing]] = {
    "cut link": (Cable.cut, Cable.mend),
    "lost answers": (Cable.silence, Cable.unsilence),
    "lost requests": (Cable.deafen, Cable.undeafen),
}


def plan_behind(cables: list[Cable]) -> Plan:
    hosts = {f"writer-{index}": Host(cable.before, f"{cable.there}:50151") for index, cable in enumerate(cables)}
    return Plan({"writer": 1 + len(cables)}, hosts=hosts)


@pytest.mark.slow
def test_17_callers_receive_nothing_wrong_when_a_cable_fails(long: bool, figure: Figure) -> None:
    async def scenario(site: Site, cable: Cable) -> None:
        async with line(site.address) as router:
            history = History(await golden_run(router, site.specialists))
            victim = site.replicas[0]
            async with Callers(router, history, Random(17), pause=0.02).calling(8) as callers:
                for what, (do, undo) in CUTS.items():
                    for _ in range(3 if long else 1):
                        noticed, back = await _cut(router, victim, cable, callers, do, undo)
                        figure(17, f"{what}: until the breaker opened", noticed, "s", "< 3 s", short="< 20 s")
                        figure(17, f"{what}: until the replica serves again", back, "s", "< 20 s", short="< 60 s")
                await _slow_cable(cable, callers, victim, 20.0 if long else 2.0)
                await until_serving(router, victim)
            await put_verdict(17, router, history, figure)

    with cables(1) as (cable,), site(plan_behind([cable])) as made:
        asyncio.run(scenario(made, cable))


async def _cut(
    router: Line, victim: Replica, cable: Cable, callers: Callers, do: Doing, undo: Doing
) -> tuple[float, float]:
    await until_serving(router, victim)
    await callers.answered(20)
    do(cable)
    began = time.monotonic()
    try:
        await until(lambda: _is_open(router, victim))
        noticed = time.monotonic() - began
        await callers.answered(20)
    finally:
        undo(cable)
    mended = time.monotonic()
    await until_serving(router, victim)
    return noticed, time.monotonic() - mended


async def _is_open(router: Line, victim: Replica) -> bool:
    return (await states(router))[victim.name][1] == "open"


async def _slow_cable(cable: Cable, callers: Callers, victim: Replica, seconds: float) -> None:
    cable.slow()
    try:
        await asyncio.sleep(seconds)
        await callers.answered(20)
    finally:
        cable.quicken()
