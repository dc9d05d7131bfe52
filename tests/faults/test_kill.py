"""Rows 1 and 27 of docs/reliability.md: replicas are killed, and are restarted gracefully, under load."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from simulation.traces import read_azure
from tests.faults.callers import PROMPTS, Callers, RouterClient, connected_client, golden_run, until
from tests.faults.figures import Figure
from tests.faults.history import History, Question
from tests.faults.site import Plan, Replica, Site, site
from tests.faults.verdict import put_verdict, until_serving
from tests.patience import PATIENCE

EIGHT = ("template", "stl", "algo", "memory", "concurrency", "systems", "build", "debug")
FASTER = 4.0
"""Speed-up relative to the trace."""


@pytest.fixture
def gaps(long: bool, request: pytest.FixtureRequest) -> Iterator[float]:
    """Return the seconds between requests: from a trace, or bursty and random in the short form."""
    if not long:
        random = Random(1)
        return (random.expovariate(200.0) if random.random() < 0.8 else random.expovariate(8.0) for _ in range(100_000))
    folder: Path = request.getfixturevalue("shared_data")
    trace = read_azure(folder / "azure" / "AzureLLMInferenceTrace_code.csv")
    return (shape.gap / FASTER for shape in trace)


@pytest.mark.slow
def test_1_a_killed_replica_loses_only_its_running_answers(long: bool, gaps: Iterator[float], figure: Figure) -> None:
    async def scenario(site: Site) -> None:
        async with connected_client(site.address) as router:
            history = History(await golden_run(router, site.specialists))
            callers = Callers(router, history, Random(1))
            kills: list[tuple[float, float]] = []
            async with callers.coming(gaps):
                for number in range(20 if long else 3):
                    await callers.answered(20)
                    victim = site.replicas[number % len(site.replicas)]
                    kills.append(await _kill(victim, router, history))
                    victim.process.restart()
                    await until_serving(router, victim)
                await callers.answered(20)
            await put_verdict(1, router, history, figure)
            share = _tried_again(history, [at for at, _ in kills])
            figure(1, "share of requests in flight that were retried", share, "", "<= 0.2")
            longest = max(seconds for _, seconds in kills)
            figure(1, "slowest recovery", longest, "s", "< 2 s", short="< 120 s")

    with site(Plan({"writer": 3})) as made:
        asyncio.run(scenario(made))


async def _kill(victim: Replica, router: RouterClient, history: History) -> tuple[float, float]:
    """Kill the replica. Return the time of the kill, and the seconds until a caller that retries has an answer."""
    victim.process.kill()
    killed = time.monotonic()

    async def is_answered() -> bool:
        account = await router.ask(Question("writer", PROMPTS[0], 1))
        history.accounts.append(account)
        return account.is_answered

    await until(is_answered)
    return killed, time.monotonic() - killed


def _tried_again(history: History, kills: list[float]) -> float:
    active = [each for each in history.accounts if any(each.began < at < (each.ended or 0.0) for at in kills)]
    again = [each for each in active if each.receipt is not None and len(each.receipt.attempts) > 1]
    return len(again) / max(1, len(active))


@pytest.mark.slow
def test_27_a_rolling_restart_of_eight_specialists_fails_no_request(long: bool, figure: Figure) -> None:
    async def scenario(site: Site) -> None:
        async with connected_client(site.address) as router:
            history = History(await golden_run(router, site.specialists))
            async with Callers(router, history, Random(27), pause=0.02).calling(12 if long else 4) as callers:
                for replica in site.replicas:
                    await callers.answered(10)
                    replica.process.terminate()
                    await asyncio.to_thread(replica.process.popen.wait, PATIENCE)
                    replica.process.restart()
                    await until_serving(router, replica)
                await callers.answered(10)
            await put_verdict(27, router, history, figure)
            figure(27, "failed requests", len(history.failed), "requests", "== 0")

    names = EIGHT if long else EIGHT[:1]
    with site(Plan(dict.fromkeys(names, 2))) as made:
        asyncio.run(scenario(made))
