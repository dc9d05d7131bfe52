"""Rows 3 and 4 of docs/reliability.md: one replica gets a tenth of a core; all replicas of a specialist are gone."""

import asyncio
import json
import time
import urllib.error
import urllib.request

import pytest

from bench.slow_periods import Interval
from octet.v1 import error_pb2
from simulation.results import percentile
from tests.faults.callers import PROMPTS, RouterClient, connected_client, golden_run, until
from tests.faults.cgroups import Cgroup, cgroup
from tests.faults.figures import Figure
from tests.faults.history import History, Question
from tests.faults.latency import (
    AGAINST,
    Comparison,
    answered_by,
    call_at_rate,
    record_slow_periods_if,
    seconds_of,
    undisturbed,
)
from tests.faults.site import Host, Plan, Site, site
from tests.faults.verdict import put_verdict, states, until_serving
from tests.patience import PATIENCE

EIGHT = ("template", "stl", "algo", "memory", "concurrency", "systems", "build", "debug")
RATE = 40.0
"""Requests a second. A tenth of a core is too little for a replica's share of them."""


@pytest.mark.slow
def test_3_a_slow_replica_gets_less_and_other_specialists_are_not_delayed(long: bool, figure: Figure) -> None:
    async def scenario(site: Site, group: Cgroup) -> None:
        async with connected_client(site.address) as router:
            golden = await golden_run(router, site.specialists)
            seconds = 20.0 if long else 3.0
            await call_at_rate(20.0, router, golden, 2.0, seed=0)
            with record_slow_periods_if(long) as slow_periods:
                usual = await call_at_rate(RATE, router, golden, seconds / 2, seed=3)
                group.allow_cpu(0.1)
                await asyncio.sleep(1.0)
                slow = await call_at_rate(RATE, router, golden, seconds, seed=4)
                group.allow_cpu(None)
                await until_serving(router, *site.replicas)
                await asyncio.sleep(1.0)
                after = await call_at_rate(RATE, router, golden, seconds / 2, seed=5)
            comparison = Comparison(3, figure, slow_periods, long)
            comparison.put_lasting(usual, after)
            usual.accounts += after.accounts
            await put_verdict(3, router, History(golden, usual.accounts + slow.accounts), figure)
            shares = [len(answered_by(each, _is_slow).answered) / len(each.answered) for each in (usual, slow)]
            figure(3, f"share of the slow one, {AGAINST}", shares[1] / shares[0], "", "< 1")
            others = answered_by(usual, _is_another), answered_by(slow, _is_another)
            comparison.put_longer("p99 TTFT elsewhere", 99, *others, "<= 1.2")

    with cgroup("cpu") as group, site(Plan({"writer": 3}, hosts={"writer-0": Host(cgroups=(group.folder,))})) as made:
        asyncio.run(scenario(made, group))


def _is_slow(replica: str) -> bool:
    return replica == "writer-0"


def _is_another(replica: str) -> bool:
    return not _is_slow(replica)


@pytest.mark.slow
def test_4_a_missing_specialist_is_refused_at_once_and_others_are_not_affected(long: bool, figure: Figure) -> None:
    async def scenario(site: Site) -> None:
        away, *others = site.specialists
        async with connected_client(site.address) as router:
            golden = await golden_run(router, others)
            seconds = 20.0 if long else 2.0
            await call_at_rate(20.0, router, golden, 2.0, seed=0)
            with record_slow_periods_if(long) as slow_periods:
                usual = await call_at_rate(20.0, router, golden, seconds / 2, seed=4)
                for replica in site.of(away):
                    replica.process.kill()
                first = await router.ask(Question(away, PROMPTS[0], 8))
                assert first.reason and first.ended
                seconds_first = first.ended - first.began
                # Half of its 30 s. After 30 s without a replica, no restart is expected any more.
                figure(4, "first refusal, which waits for a restart", seconds_first, "s", "< 16 s", short="< 120 s")
                await asyncio.sleep(max(0.0, 31.0 - seconds_first))
                asking = asyncio.create_task(call_at_rate(20.0, router, golden, seconds, seed=5))
                refused = []
                while not asking.done():
                    account = await router.ask(Question(away, PROMPTS[0], 8))
                    assert (account.reason, account.tokens) == (error_pb2.ERROR_REASON_NO_REPLICA, [])
                    refused.append((account.began, account.ended or 0.0))
                    await asyncio.sleep(0.05)
                without = await asking
                status, seconds_http = await asyncio.to_thread(_status, site.http, away)
                for replica in site.of(away):
                    replica.process.restart()
                await until_serving(router, *site.replicas)
                after = await call_at_rate(20.0, router, golden, seconds / 2, seed=6)
            figure(4, "status over HTTP", status, "", "== 503")
            comparison = Comparison(4, figure, slow_periods, long)
            _put_refusals(refused, comparison)
            figure(4, "refusal over HTTP", seconds_http * 1000, "ms", "< 50 ms", short="< 120,000 ms")
            comparison.put_lasting(usual, after)
            usual.accounts += after.accounts
            comparison.put_longer("p95 TTFT elsewhere", 95, usual, without, "<= 1.1")
            assert usual.failed == without.failed == []
            await put_verdict(4, router, History(golden, usual.accounts + without.accounts), figure)

    with site(Plan(dict.fromkeys(EIGHT if long else EIGHT[:3], 1))) as made:
        asyncio.run(scenario(made))


def _put_refusals(refused: list[Interval], comparison: Comparison) -> None:
    figure = comparison.figure
    own = max(seconds_of(undisturbed(refused, comparison.slow_periods))) * 1000
    figure(4, f"slowest refusal{comparison.where}", own, "ms", "< 50 ms", short="< 120,000 ms")
    took = seconds_of(refused)
    usually = percentile(took, 95) * 1000
    figure(4, "95th percentile of refusals, slow periods included", usually, "ms", "< 50 ms", short="< 120,000 ms")
    slowest = max(took) * 1000
    figure(4, "slowest refusal, slow periods included", slowest, "ms", "< 1000 ms", short="< 120,000 ms")


def _status(http: str, specialist: str) -> tuple[int, float]:
    body = {"model": f"octet/{specialist}", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    ask = urllib.request.Request(  # noqa: S310
        f"{http}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    began = time.monotonic()
    try:
        with urllib.request.urlopen(ask, timeout=PATIENCE) as answer:  # noqa: S310
            return answer.status, time.monotonic() - began
    except urllib.error.HTTPError as error:
        return error.code, time.monotonic() - began


@pytest.mark.slow
def test_4_a_receipt_names_the_fallback(figure: Figure) -> None:
    async def scenario(site: Site) -> None:
        async with connected_client(site.address) as router:
            golden = await golden_run(router, ["stl"])
            site.of("template")[0].process.kill()
            await until(lambda: _is_away(router))
            asked = Question("stl", PROMPTS[0], 16)
            account = await router.ask(asked, force_specialists=[], intent="types")
            assert History(golden, [account]).violations() == [] and account.is_answered
            receipt = account.receipt
            assert receipt is not None and receipt.decision.primary == "template"
            stamped = receipt.between.instead_of == "template" or receipt.attempts[0].specialist == "template"
            figure(4, "share of receipts that name the fallback", float(stamped), "", "== 1")

    settings = "intents: {types: {specialist: template}}\n"
    with site(Plan({"template": 1, "stl": 1}, settings, about={"template": "{fallback: stl}"})) as made:
        asyncio.run(scenario(made))


async def _is_away(router: RouterClient) -> bool:
    return (await states(router))["template-0"][1] == "open"
