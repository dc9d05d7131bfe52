"""Row 2 of docs/reliability.md: a replica is stopped with SIGSTOP under load and continues half a minute later."""

import asyncio
import time
from random import Random

import pytest

from tests.faults.callers import Callers, RouterClient, connected_client, golden_run, until
from tests.faults.figures import Figure
from tests.faults.history import Account, History
from tests.faults.site import Plan, Replica, Site, site
from tests.faults.verdict import put_verdict, states, until_serving


@pytest.mark.slow
def test_2_a_stopped_replica_is_left_soon_and_probed_before_reuse(long: bool, figure: Figure) -> None:
    async def scenario(site: Site) -> None:
        async with connected_client(site.address) as router:
            history = History(await golden_run(router, site.specialists))
            victim = site.replicas[0]
            async with Callers(router, history, Random(2), pause=0.01).calling(12) as callers:
                seconds = []
                for stay in (2.0, 5.0, 30.0) if long else (1.0, 2.0):
                    await callers.answered(30)
                    seconds.append(await _noticed(router, victim, callers, stay))
            await put_verdict(2, router, history, figure)
            figure(2, "time until the breaker opened, at worst", max(seconds), "s", "< 1.5 s", short="< 120 s")

    with site(Plan({"writer": 3})) as made:
        asyncio.run(scenario(made))


async def _noticed(router: RouterClient, victim: Replica, callers: Callers, stay: float) -> float:
    """Stop the replica until `stay` seconds after its breaker opened. Then check that a probe is answered before other
    requests are sent to the replica. Return the seconds until the breaker opened."""
    victim.process.stop()
    stopped = time.monotonic()
    try:
        await until(lambda: _is(router, victim, "hung", "open"))
        noticed = time.monotonic() - stopped
        await asyncio.sleep(stay)
        assert (await states(router))[victim.name][0] in ("hung", "connecting"), (
            "the replica must be unusable; its connection may have been closed meanwhile"
        )
    finally:
        victim.process.resume()
    went_on = time.monotonic()
    await until_serving(router, victim)
    await until(lambda: len(_answered_by(victim, callers, went_on)) >= 3)
    await callers.settled()
    probe, *others = _answered_by(victim, callers, went_on)
    assert probe.receipt is not None and probe.receipt.breaker == "half_open"
    assert all(_dispatched(other) >= _first_token(probe) for other in others), (
        "no request may be sent to the replica before the probe is answered"
    )
    return noticed


async def _is(router: RouterClient, victim: Replica, *state: str) -> bool:
    return (await states(router))[victim.name] == state


def _answered_by(victim: Replica, callers: Callers, since: float) -> list[Account]:
    """Return the answers that the replica gave after `since`, in the order of dispatch."""
    accounts = [each for each in callers.history.answered if each.began > since - 60 and (each.first or 0) > since]
    there = [each for each in accounts if each.receipt is not None and each.receipt.replica == victim.name]
    return sorted(there, key=_dispatched)


def _dispatched(account: Account) -> float:
    """Return when the router dispatched the request, in seconds of the router's clock."""
    assert account.receipt is not None
    began: float = account.receipt.attempts[-1].began
    return account.receipt.created_unix_ms / 1000 + began


def _first_token(account: Account) -> float:
    assert account.receipt is not None
    seconds: float = account.receipt.timings.first_chunk
    return account.receipt.created_unix_ms / 1000 + seconds - 0.002
