"""One overview for everybody who looks: made no more often than it may be, and written for nobody who is not there."""

import asyncio
import json
from contextlib import aclosing

import pytest

from octet.rpc.messages import message_to_json
from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2, specialist_pb2
from octet.v1 import operator_pb2 as wire
from router.observe.overview.overview import STEP_SECONDS, TICK_SECONDS, OverviewFrame
from tests.router.overview.harness import ASK, START_MS, Viewed, ensemble_of, receipt_of, viewed


async def test_an_overview_has_every_part() -> None:
    house = viewed()
    house.loads["debug-1"] = specialist_pb2.LoadReport(waiting=3)
    house.slos.found = [wire.Slo(specialist="debug", answered=7), wire.Slo(specialist="gone")]
    house.control.breaker_changes["stl"] = {"state": "shadow_only", "fallback": "debug"}
    house.view.sources.traffic.ended(ASK, receipt_of("debug", request_id="a"))
    overview = house.overview()
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
    house = viewed()
    for _ in range(100):
        house.view.tick()
        house.pass_time(TICK_SECONDS)
    assert house.control.num_looks == 50 / STEP_SECONDS
    points = house.view.history.message().specialists[0].points
    assert len(points) == 10 and points[1].at_unix_ms - points[0].at_unix_ms == 1000 * STEP_SECONDS


async def test_many_look_and_it_is_made_once_for_all_of_them() -> None:
    house = viewed()
    async with aclosing(house.view.follow()) as one, aclosing(house.view.follow()) as other:
        first, again = await anext(one), await anext(other)
        assert first is again and house.control.num_looks == 1
        for number in range(1, 6):
            waiting = [asyncio.create_task(anext(each)) for each in (one, other)]
            await asyncio.sleep(0)
            house.view.sources.traffic.ended(ASK, receipt_of())
            house.pass_time(TICK_SECONDS)
            house.view.tick()
            seen = await asyncio.gather(*waiting)
            assert seen[0] is seen[1] and house.control.num_looks == 1 + number
            assert await seen[0].json() is await seen[1].json() and seen[0].raw is seen[1].raw
        assert house.view.now() is seen[0] and house.control.num_looks == 6, "no more than twice a second"
    assert house.view.watchers.taken == 0


async def test_an_unchanged_overview_is_sent_within_five_seconds() -> None:
    house = viewed()
    house.pass_time(100)
    async with aclosing(house.view.follow()) as frames:
        await anext(frames)
        told, waiting = [], asyncio.create_task(anext(frames))
        for number in range(1, 40):
            await asyncio.sleep(0)
            house.pass_time(TICK_SECONDS)
            house.view.tick()
            await asyncio.sleep(0)
            if waiting.done():
                told.append(number * TICK_SECONDS)
                waiting = asyncio.create_task(anext(frames))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    gaps = [later - sooner for sooner, later in zip([0.0, *told], told, strict=False)]
    assert told and max(gaps) <= 5 and min(gaps) >= 4


async def test_a_slow_watcher_gets_the_newest_overview() -> None:
    house = viewed()
    async with aclosing(house.view.follow()) as frames:
        await anext(frames)
        for number in range(5):
            house.view.sources.traffic.ended(ASK, receipt_of(request_id=str(number)))
            house.pass_time(TICK_SECONDS)
            house.view.tick()
        assert (await anext(frames)).overview.receipts[0].request_id == "4"


async def test_too_many_watchers_are_refused() -> None:
    house = viewed(most_watchers=1)
    async with aclosing(house.view.follow()) as one, aclosing(house.view.follow()) as other:
        await anext(one)
        with pytest.raises(Refusal) as caught:
            await anext(other)
        assert caught.value.error.reason == error_pb2.ERROR_REASON_QUEUE_FULL
        assert "watching the overview" in str(caught.value)
    async with aclosing(house.view.follow()) as next_one:
        await anext(next_one)


async def test_json_equals_the_message() -> None:
    house = viewed()
    hostile = 'x"</script>\r\n\r\ndata: {"a":1}\u2028\u202e\x00'
    house.view.sources.traffic.ended(ASK, receipt_of(request_id=hostile))
    house.loads["debug-0"] = specialist_pb2.LoadReport(prefill_rate=float("nan"))
    frame = house.view.now()
    told = await frame.json()
    assert b"\n" not in told and b"\r" not in told
    assert json.loads(told) == message_to_json(frame.overview)
    assert json.loads(told)["receipts"][0]["request_id"] == hostile
    assert wire.Overview.FromString(frame.raw).receipts[0].request_id == hostile


async def test_a_specialist_that_goes_is_gone_and_one_that_comes_is_there() -> None:
    house = viewed("debug", "stl")
    house.view.sources.traffic.ended(ASK, receipt_of("debug"))
    house.view.tick()
    house.view.reload(ensemble_of("stl", "algo"))
    house.pass_time(STEP_SECONDS)
    house.view.tick()
    overview = house.overview()
    assert [each.name for each in overview.specialists] == ["stl", "algo"]
    assert not overview.specialists[1].HasField("breaker"), "those who control do not know it yet"
    assert [(each.name, len(each.points)) for each in house.view.history.message().specialists] == [
        ("stl", 2),
        ("algo", 1),
    ]
    assert house.view.sources.traffic.of_specialist("debug").requests == 0
    assert ("no_replica", "algo") in house.view._tracker._tracked


async def test_the_cache_is_sampled_without_watchers() -> None:
    house = viewed()
    told = specialist_pb2.LoadReport()
    house.loads["debug-0"] = told
    for _ in range(100):
        told.prompt_tokens += 2000
        told.cache_hit_tokens += 1600
        house.pass_time(STEP_SECONDS)
        house.view.tick()
    for _ in range(50):
        told.prompt_tokens += 2000
        told.evicted_blocks += 9
        house.pass_time(STEP_SECONDS)
        house.view.tick()
    view = house.overview().specialists[0]
    assert view.cache_reuse < 0.2 and view.usual_cache_reuse == pytest.approx(0.8)
    (trouble,) = house.overview().troubles
    assert (trouble.kind, trouble.runbook) == ("cache_drift", "cache-drift") and "blocks evicted" in trouble.text
    assert START_MS < trouble.since_unix_ms < house.wall[0]


async def test_the_largest_house_is_bounded_and_others_go_on_while_it_is_written() -> None:
    names = [f"specialist-{number}" for number in range(64)]
    house = viewed(*names, num_replicas=64)
    house.control.statuses = {f"{name}-{index}": "hung" for name in names for index in range(1, 64)}
    house.loads.update({f"{name}-0": specialist_pb2.LoadReport(running=1) for name in names})
    frame = house.view.now()
    assert len(frame.overview.troubles) == 64 and len(frame.overview.specialists) == 64
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    told = await frame.json()
    beside.cancel()
    assert turns >= 64 and len(json.loads(told)["specialists"]) == 64


async def test_where_it_is_costly_it_comes_less_often() -> None:
    house = viewed()
    assert house.view.pause == TICK_SECONDS
    house.view._last_cost = 0.04
    assert house.view.pause == pytest.approx(2.0), "a fiftieth of a core"
    house.view._last_cost = 3.0
    assert house.view.pause == STEP_SECONDS


async def test_what_is_written_is_counted() -> None:
    house: Viewed = viewed()
    spent = iter(range(1000))
    frame = OverviewFrame(0, house.overview(), 0.0, lambda: float(next(spent)))
    assert frame.cost == 0.0
    await frame.json()
    written = frame.cost
    assert written > 0 and await frame.json() and frame.cost == written
    assert frame.raw and frame.cost > written


async def test_a_router_that_has_just_begun_waits_for_its_replicas_before_it_cries() -> None:
    house = viewed("debug", num_replicas=1)
    house.control.statuses["debug-0"] = "connecting"
    assert house.overview().headline == "No specialist serves." and not house.overview().troubles
    house.pass_time(2)
    assert "nobody_serves" in {each.kind for each in house.overview().troubles}
    served = viewed("debug", num_replicas=1)
    assert not served.overview().troubles
    served.control.statuses["debug-0"] = "connecting"
    served.pass_time(1)
    assert [each.kind for each in served.overview().troubles] == ["nobody_serves"], "who served is missed at once"
