"""With a real Prometheus and a real ensemble, every dashboard query returns data and every rule can be evaluated."""

import asyncio
from pathlib import Path
from typing import Any

from tests.monitoring.board import Query, board_queries, rules
from tests.monitoring.prometheus import Prometheus, scraping, tool
from tests.monitoring.traffic import busy_ensemble
from tests.patience import PATIENCE

_SCRAPES = "min(count_over_time(up[5m]))"


async def _unanswered(prometheus: Prometheus, queries: list[Query]) -> list[Query]:
    return [query for query in queries if not await prometheus.ask(query.asked)]


async def _all_answered(prometheus: Prometheus) -> None:
    """Wait until every query of the dashboard returns data. A rate needs two scrapes."""
    open_questions = board_queries()
    try:
        async with asyncio.timeout(PATIENCE):
            while max(await prometheus.ask(_SCRAPES), default=0) < 2:
                await asyncio.sleep(0.3)
            while open_questions := await _unanswered(prometheus, open_questions):
                await asyncio.sleep(0.5)
    except TimeoutError:
        raise AssertionError(f"no data for {open_questions}") from None


async def _all_evaluate(prometheus: Prometheus) -> None:
    for rule in rules():
        await prometheus.ask(rule["expr"])
    documented_families = await prometheus.get("/api/v1/rules")
    evaluated = [rule for group in documented_families["data"]["groups"] for rule in group["rules"]]
    assert len(evaluated) == len(list(rules()))
    assert {rule["health"] for rule in evaluated} == {"ok"}, [rule.get("lastError") for rule in evaluated]


async def _all_up(prometheus: Prometheus) -> None:
    """Wait until the last scrape of every target has succeeded. On a loaded machine, one may take longer than its
    interval."""
    targets: list[Any] = []
    try:
        async with asyncio.timeout(PATIENCE):
            while {target["health"] for target in targets} != {"up"}:
                targets = (await prometheus.get("/api/v1/targets"))["data"]["activeTargets"]
                await asyncio.sleep(0.3)
    except TimeoutError:
        raise AssertionError([target["lastError"] for target in targets]) from None


async def test_every_dashboard_query_returns_data_and_every_rule_evaluates(tmp_path: Path) -> None:
    tool("prometheus")
    async with (
        busy_ensemble(tmp_path) as busy,
        scraping(tmp_path, busy.url.removeprefix("http://")) as prometheus,
    ):
        await _all_answered(prometheus)
        await _all_evaluate(prometheus)
        assert set(busy.ended) == {200, 404, 429}, "the traffic had unexpected statuses"
        await _all_up(prometheus)
