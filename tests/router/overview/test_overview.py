"""All watchers share one overview, which is computed at a limited rate, and only while there are watchers."""

import asyncio
import json
from contextlib import aclosing

import pytest

from octet.rpc.messages import message_to_json
from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2, specialist_pb2
from octet.v1 import operator_pb2 as wire
from router.observe.overview.overview import STEP_SECONDS, TICK_SECONDS, OverviewFrame
from tests.router.overview.harness import ASK, START_MS, OverviewHarness, ensemble_of, make_overviews, receipt_of


async def test_an_overview_has_every_part() -> None:
    harness = make_overviews()
    harness.loads["debug-1"] = specialist_pb2.LoadReport(waiting=3)
    harness.slos.found = [wire.Slo(specialist="debug", answered=7), wire.Slo(specialist="gone")]
    harness.control.breaker_changes["stl"] = {"state": "shadow_only", "fallback": "debug"}
    harness.view.traffic.ended(ASK, receipt_of("debug", request_id="a"))
    overview = harness.overview()
    debug, stl = overview.specialists
    assert (debug.name, debug.describe, debug.slo.answered) == ("debug", "about debug", 7)
    assert not stl.HasField("slo") and stl.breaker.state == "shadow_only" and not stl.HasField("candidate")
    assert [lane.status for lane in debug.lanes] == ["previous", "serving"]
    assert [each.info.name for each in debug.replicas] == ["debug-0", "debug-1"]
    assert debug.replicas[1].load.waiting == 3 and not debug.replicas[0].HasField("load")
    assert debug.rates.answered == 1.0 and overview.receipts[0].request_id == "a"
    assert [each.kind for each in overview.troubles] == ["breaker_open"]
    assert overview.headline == overview.troubles[0].text and overview.at_unix_ms == START_MS


async def test_without_watchers_only_the_history_is_made() -> None:
    harness = make_overviews()
    for _ in range(100):
        harness.view.tick()
        harness.pass_time(TICK_SECONDS)
    assert harness.control.num_looks == 50 / STEP_SECONDS
    points = harness.view.history.message().specialists[0].points
    assert len(points) == 10 and points[1].at_unix_ms - points[0].at_unix_ms == 1000 * STEP_SECONDS


async def test_one_overview_is_computed_for_all_watchers() -> None:
    harness = make_overviews()
    async with aclosing(harness.view.follow()) as one, aclosing(harness.view.follow()) as other:
        first, again = await anext(one), await anext(other)
        assert first is again and harness.control.num_looks == 1
        for number in range(1, 6):
            waiting = [asyncio.create_task(anext(each)) for each in (one, other)]
            await asyncio.sleep(0)
            harness.view.traffic.ended(ASK, receipt_of())
            harness.pass_time(TICK_SECONDS)
            harness.view.tick()
            seen = await asyncio.gather(*waiting)
            assert seen[0] is seen[1] and harness.control.num_looks == 1 + number
            assert await seen[0].json() is await seen[1].json() and seen[0].raw is seen[1].raw
        assert harness.view.now() is seen[0] and harness.control.num_looks == 6, (
            "an overview may be computed at most twice a second"
        )
    assert harness.view.watchers.num_open.total() == 0


async def test_an_unchanged_overview_is_sent_within_five_seconds() -> None:
    harness = make_overviews()
    harness.pass_time(100)
    async with aclosing(harness.view.follow()) as frames:
        await anext(frames)
        reported, waiting = [], asyncio.create_task(anext(frames))
        for number in range(1, 40):
            await asyncio.sleep(0)
            harness.pass_time(TICK_SECONDS)
            harness.view.tick()
            await asyncio.sleep(0)
            if waiting.done():
                reported.append(number * TICK_SECONDS)
                waiting = asyncio.create_task(anext(frames))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    gaps = [later - sooner for sooner, later in zip([0.0, *reported], reported, strict=False)]
    assert reported and max(gaps) <= 5 and min(gaps) >= 4


async def test_a_slow_watcher_gets_the_newest_overview() -> None:
    harness = make_overviews()
    async with aclosing(harness.view.follow()) as frames:
        await anext(frames)
        for number in range(5):
            harness.view.traffic.ended(ASK, receipt_of(request_id=str(number)))
            harness.pass_time(TICK_SECONDS)
            harness.view.tick()
        assert (await anext(frames)).overview.receipts[0].request_id == "4"


async def test_too_many_watchers_are_refused() -> None:
    harness = make_overviews(most_watchers=1)
    async with aclosing(harness.view.follow()) as one, aclosing(harness.view.follow()) as other:
        await anext(one)
        with pytest.raises(Refusal) as caught:
            await anext(other)
        assert caught.value.error.reason == error_pb2.ERROR_REASON_QUEUE_FULL
        assert "watching the overview" in str(caught.value)
    async with aclosing(harness.view.follow()) as next_one:
        await anext(next_one)


async def test_json_equals_the_message() -> None:
    harness = make_overviews()
    hostile = 'x"</script>\r\n\r\ndata: {"a":1}\u2028\u202e\x00'
    harness.view.traffic.ended(ASK, receipt_of(request_id=hostile))
    harness.loads["debug-0"] = specialist_pb2.LoadReport(prefill_rate=float("nan"))
    frame = harness.view.now()
    reported = await frame.json()
    assert b"\n" not in reported and b"\r" not in reported
    assert json.loads(reported) == message_to_json(frame.overview)
    assert json.loads(reported)["receipts"][0]["request_id"] == hostile
    assert wire.Overview.FromString(frame.raw).receipts[0].request_id == hostile


async def test_a_reload_adds_and_removes_specialists() -> None:
    harness = make_overviews("debug", "stl")
    harness.view.traffic.ended(ASK, receipt_of("debug"))
    harness.view.tick()
    harness.view.reload(ensemble_of("stl", "algo"))
    harness.pass_time(STEP_SECONDS)
    harness.view.tick()
    overview = harness.overview()
    assert [each.name for each in overview.specialists] == ["stl", "algo"]
    assert not overview.specialists[1].HasField("breaker"), "the control plane does not know the new specialist yet"
    assert [(each.name, len(each.points)) for each in harness.view.history.message().specialists] == [
        ("stl", 2),
        ("algo", 1),
    ]
    assert harness.view.traffic.of_specialist("debug").requests == 0
    assert ("no_replica", "algo") in harness.view._tracker._tracked


async def test_the_cache_is_sampled_without_watchers() -> None:
    harness = make_overviews()
    reported = specialist_pb2.LoadReport()
    harness.loads["debug-0"] = reported
    for _ in range(100):
        reported.prompt_tokens += 2000
        reported.cache_hit_tokens += 1600
        harness.pass_time(STEP_SECONDS)
        harness.view.tick()
    for _ in range(50):
        reported.prompt_tokens += 2000
        reported.evicted_blocks += 9
        harness.pass_time(STEP_SECONDS)
        harness.view.tick()
    view = harness.overview().specialists[0]
    assert view.cache_reuse < 0.2 and view.usual_cache_reuse == pytest.approx(0.8)
    (trouble,) = harness.overview().troubles
    assert (trouble.kind, trouble.runbook) == ("cache_drift", "cache-drift") and "blocks evicted" in trouble.text
    assert START_MS < trouble.since_unix_ms < harness.wall[0]


async def test_the_largest_ensemble_is_written_without_blocking_the_event_loop() -> None:
    names = [f"specialist-{number}" for number in range(64)]
    harness = make_overviews(*names, num_replicas=64)
    harness.control.statuses = {f"{name}-{index}": "hung" for name in names for index in range(1, 64)}
    harness.loads.update({f"{name}-0": specialist_pb2.LoadReport(running=1) for name in names})
    frame = harness.view.now()
    assert len(frame.overview.troubles) == 64 and len(frame.overview.specialists) == 64
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    reported = await frame.json()
    beside.cancel()
    assert turns >= 64 and len(json.loads(reported)["specialists"]) == 64


async def test_an_expensive_overview_is_computed_less_often() -> None:
    harness = make_overviews()
    assert harness.view.pause == TICK_SECONDS
    harness.view._last_cost = 0.04
    assert harness.view.pause == pytest.approx(2.0), "computing may use at most two percent of a core"
    harness.view._last_cost = 3.0
    assert harness.view.pause == STEP_SECONDS


async def test_the_cost_of_serialization_is_counted() -> None:
    harness: OverviewHarness = make_overviews()
    spent = iter(range(1000))
    frame = OverviewFrame(0, harness.overview(), 0.0, lambda: float(next(spent)))
    assert frame.cost == 0.0
    await frame.json()
    written = frame.cost
    assert written > 0 and await frame.json() and frame.cost == written
    assert frame.raw and frame.cost > written


async def test_a_new_router_waits_for_its_replicas_before_it_reports_them() -> None:
    harness = make_overviews("debug", num_replicas=1)
    harness.control.statuses["debug-0"] = "connecting"
    assert harness.overview().headline == "No specialist serves." and not harness.overview().troubles
    harness.pass_time(2)
    assert "nobody_serves" in {each.kind for each in harness.overview().troubles}
    served = make_overviews("debug", num_replicas=1)
    assert not served.overview().troubles
    served.control.statuses["debug-0"] = "connecting"
    served.pass_time(1)
    assert [each.kind for each in served.overview().troubles] == ["nobody_serves"], (
        "a specialist that served before must be reported immediately"
    )
