"""What a replica reports about its cache and about preempted requests."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from octet.clock import ManualClock
from octet.supervisor.process import PREVIOUS_END_VARIABLE, ProcessEnd
from octet.v1 import specialist_pb2 as wire
from specialist.scheduling.sequence import GREEDY
from specialist.scheduling.step import Admitted, Emitted, Finished, Preempted
from specialist.server.engine_thread import EngineThread
from specialist.server.replica import TOKEN_BYTES
from specialist.server.served_request import AnswerText, ServedRequest
from specialist.server.server import _identify_process
from specialist.server.settings import ReplicaSettings
from tests.patience import PATIENCE
from tests.specialist.builders import make_request
from tests.specialist.server.harness import (
    QUICK,
    ReceivedAnswer,
    ReplicaHarness,
    ask,
    ask_and_resume,
    begin_paused,
    expected,
    generate_request,
    running_replica,
    serving_simulated,
    sim,
)
from tests.specialist.server.test_answer import WORDS
from tests.specialist.server.test_heartbeat import reports

SHARED = "a beginning that all prompts have in common, and that is longer than a block or two "


async def settled(served: ReplicaHarness, *answers: ReceivedAnswer) -> wire.LoadReport:
    """Return a load report that counts these answers, measured when no request ran or waited."""
    num_tokens = sum(answer.usage.prompt_tokens for answer in answers if answer.usage is not None)
    report = wire.LoadReport()
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            async for report in reports(served, heartbeat_ms=20):
                is_idle = not report.running + report.waiting and report.blocks.used == 0
                if is_idle and report.prompt_tokens >= num_tokens > 0:
                    return report
    raise AssertionError(f"no report counts {num_tokens} prompt tokens; the last one: {report}")


async def watched(served: ReplicaHarness, into: list[wire.LoadReport]) -> None:
    stream: AsyncIterator[wire.LoadReport] = reports(served, heartbeat_ms=20, min_interval_ms=0)
    async for report in stream:
        into.append(report)


async def test_prompt_tokens_and_hits_are_those_of_the_answers() -> None:
    async with running_replica(sim()) as served:
        received = [await ask(served.client, generate_request(SHARED + str(number))) for number in range(4)]
        usages = [one.usage for one in received if one.usage is not None]
        report = await settled(served, *received)
        assert len(usages) == 4 and sum(usage.cache_hit_tokens for usage in usages) > 0
        assert report.prompt_tokens == sum(usage.prompt_tokens for usage in usages)
        assert report.cache_hit_tokens == sum(usage.cache_hit_tokens for usage in usages)
        assert report.evicted_blocks == 0 == served.replica.scheduler.pool.counters.evictions


async def test_tokens_from_host_memory_are_hits_of_the_receipt_and_counted_in_metrics() -> None:
    """The pool holds one prompt, the host all."""
    settings = sim(num_blocks=16, context=120, spill_bytes=64 * 16 * TOKEN_BYTES)
    async with running_replica(settings) as served:
        prompts = [f"{number} " * 40 for number in range(4)]
        first = [await ask(served.client, generate_request(prompt)) for prompt in prompts]
        again = [await ask(served.client, generate_request(prompt)) for prompt in prompts]
        assert [one.usage.cache_hit_tokens for one in first if one.usage is not None] == [0] * 4
        assert [one.text for one in again] == [one.text for one in first]
        hits = [one.usage.cache_hit_tokens for one in again if one.usage is not None]
        assert min(hits) >= 64
        host = served.replica.scheduler.pool.host
        assert host is not None and host.num_restored * 16 >= sum(hits) - 4 * 16
        report = await settled(served, *first, *again)
        assert report.cache_hit_tokens == sum(hits)
        text = (await served.server.exposition.write("")).body.decode()
        for name, num in (
            ("kv_host_blocks_limit", 64),
            ("kv_host_blocks", len(host.blocks)),
            ("kv_block_spills_total", host.num_spilled),
            ("kv_block_restores_total", host.num_restored),
            ("kv_block_drops_total", 0),
        ):
            assert re.search(rf"^octet_replica_{name}{{[^}}]*}} {num}(\.0)?$", text, re.MULTILINE), name


def test_host_memory_without_a_prefix_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="of no use without a prefix cache"):
        ReplicaSettings(spill_bytes=1 << 20, prefix_cache=False)


async def test_evictions_are_reported_and_counters_never_fall() -> None:
    """Thirty different prompts are sent to a pool that holds only a few."""
    async with running_replica(sim(num_blocks=16, context=120)) as served:
        reported: list[wire.LoadReport] = []
        watch = asyncio.create_task(watched(served, reported))
        received = [await ask(served.client, generate_request(f"{number} " * 20)) for number in range(30)]
        report = await settled(served, *received)
        watch.cancel()
        assert report.evicted_blocks == served.replica.scheduler.pool.counters.evictions > 30
        counts = [(each.prompt_tokens, each.cache_hit_tokens, each.evicted_blocks) for each in reported]
        assert len(set(counts)) > 3
        for column in zip(*counts, strict=True):
            assert list(column) == sorted(column)
        assert all(hits <= prompts for prompts, hits, _ in counts)


async def test_idle_replica_sends_no_reports() -> None:
    async with running_replica(sim()) as served:
        stream = reports(served, min_interval_ms=0)
        await anext(stream)
        quiet = await settled(served, await ask(served.client, generate_request(SHARED)))
        while (received := await anext(stream)).prompt_tokens != quiet.prompt_tokens or received.running:
            continue
        with_nothing: list[wire.LoadReport] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                async for report in stream:
                    with_nothing.append(report)
        assert len(with_nothing) <= 1, "only a last change of rates and forecasts may follow"


async def test_preempted_request_reports_its_time_and_answers_the_same() -> None:
    # The requests do not fit together: there are 8 blocks of 16 tokens.
    async with serving_simulated(QUICK, num_blocks=9, context=120) as (served, clock):
        low = generate_request("low " * 10, max_tokens=60, ignore_eos=True, priority=1)
        high = generate_request("high " * 12, max_tokens=50, ignore_eos=True, priority=9)
        first = await begin_paused(served, clock, low)
        second = await ask_and_resume(served, clock, high)
        usage = (await first).usage
        assert usage is not None and second.usage is not None
        assert usage.times_preempted > 0 and usage.timings.HasField("preempted")
        assert 0 < usage.timings.preempted <= usage.timings.prefill + usage.timings.decode
        assert not second.usage.timings.HasField("preempted") and second.usage.times_preempted == 0
        assert (await first).tokens == expected(served.replica, low)
        assert second.tokens == expected(served.replica, high)
        report = await settled(served, await first, second)
        assert report.times_preempted == usage.times_preempted
        assert report.prompt_tokens == usage.prompt_tokens + second.usage.prompt_tokens


def served_request() -> ServedRequest:
    request = make_request("r")
    served = ServedRequest("r", "x", (), GREEDY, None, 8, 64, (), False, 0, None, None, b"")
    served.request, served.public_id, served.answer = request, "r", AnswerText(WORDS.detokenizer())
    return served


Move = tuple[str, int]
MOVES = st.lists(st.tuples(st.sampled_from(["run", "leave", "say"]), st.integers(0, 9)), max_size=40)


@given(MOVES)
@example([("run", 0), ("say", 1), ("say", 2), ("leave", 1), ("run", 3), ("say", 1), ("say", 1)])
def test_preempted_time_counts_if_a_token_follows(moves: list[Move]) -> None:
    """The reported time must be the time for which the request did not run between its first admission and its last
    token. Every token is counted and passed on."""
    clock = ManualClock()
    served = served_request()
    loop = SimpleNamespace(scheduler=None)
    thread = EngineThread(cast(Any, loop), clock)
    thread._served["r"] = served
    running, began, away, reported, times = False, False, 0, 0, 0
    said_at: list[float] = []
    for move, seconds in moves:
        clock.sleep(seconds)
        away += seconds if began and not running else 0
        if move == "run" and not running:
            thread._handle_all([Admitted("r", 4, 0, times)], clock.now(), clock.now())
            running = began = True
        elif move == "leave" and running:
            thread._handle_all([Preempted("r", "admission", "")], clock.now(), clock.now())
            running, times = False, times + 1
        elif move == "say" and running:
            thread._handle_all([Emitted("r", (1, 2))], clock.now(), clock.now())
            reported = away
            said_at.append(clock.now())
    usage = served.usage(Finished("r", "cancelled", ""), clock.now())
    assert (usage.preempted or 0) == reported and usage.times_preempted == times
    assert usage.completion_tokens == 2 * len(said_at)
    assert usage.decode == (said_at[-1] - said_at[0] if said_at else None)
    assert thread._updates == [(served, Emitted("r", (1, 2)))] * len(said_at)
    assert (usage.preempted or 0) <= (usage.prefill or 0) + (usage.decode or 0)
    if not times:
        assert usage.preempted is None


def test_report_says_how_the_process_before_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    end = ProcessEnd("killed", "killed by SIGKILL", 7)
    monkeypatch.setenv(PREVIOUS_END_VARIABLE, json.dumps(asdict(end)))
    assert _identify_process().previous_end == wire.ProcessEnd(kind=end.kind, text=end.text, number=7)
    assert not _identify_process().HasField("previous_end"), "it is read once"
