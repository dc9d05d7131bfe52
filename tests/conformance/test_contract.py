"""The service contract over a real socket, for every engine."""

import asyncio
from collections.abc import Callable
from random import Random

import grpc

from octet.clock import SystemClock
from octet.v1 import specialist_pb2 as wire
from specialist.server.replica import AssembledReplica
from tests.conformance.shape import Factory, Shape
from tests.specialist.server.harness import ReceivedAnswer, ReplicaHarness, ask, running_replica, until

SHAPE = Shape(num_blocks=48, block_size=8, chunk_tokens=32, max_running=6)


def built(engine: Factory) -> Callable[[], AssembledReplica]:
    return lambda: engine(SHAPE, SystemClock()).replica


def requests_of(seed: int, count: int) -> list[wire.GenerateRequest]:
    rng = Random(seed)
    return [
        wire.GenerateRequest(
            tokens=wire.TokenIds(ids=[rng.randrange(90) for _ in range(rng.randrange(1, 40))]),
            max_tokens=rng.randrange(2, 24),
            seed=rng.randrange(100),
            sampling=wire.Sampling(temperature=rng.choice([0.0, 0.9])),
            ignore_eos=True,
            priority=rng.randrange(3),
        )
        for _ in range(count)
    ]


async def one_by_one(served: ReplicaHarness, requests: list[wire.GenerateRequest]) -> list[ReceivedAnswer]:
    return [await ask(served.client, request) for request in requests]


async def test_answer_is_the_same_alone_and_together(engine: Factory) -> None:
    requests = requests_of(1, 14)
    async with running_replica(built(engine)) as served:
        alone = await one_by_one(served, requests)
        together = await asyncio.gather(*(ask(served.client, request) for request in requests))
        for request, one, other in zip(requests, alone, together, strict=True):
            assert one.tokens == other.tokens and one.text == other.text
            assert len(one.tokens) == request.max_tokens
            assert one.usage is not None and one.usage.finish_reason == wire.FINISH_REASON_LENGTH
            assert one.usage.completion_tokens == len(one.tokens)
        await served.idle()
        served.check_whole()


async def test_a_stop_string_cuts_the_text_and_stops_the_engine(engine: Factory) -> None:
    async with running_replica(built(engine)) as served:
        for request in requests_of(2, 12):
            request.max_tokens = 24
            full = await ask(served.client, request)
            if len(full.text) < 6:
                continue
            stop = full.text[3:5]
            request.stop.append(stop)
            cut = await ask(served.client, request)
            assert cut.text == full.text[: full.text.index(stop)]
            assert cut.usage is not None and cut.usage.stop_string == stop
            assert cut.tokens == full.tokens[: len(cut.tokens)] and len(cut.tokens) < len(full.tokens)
            await served.idle()
            served.check_whole()
            return
        raise AssertionError("no answer was long enough to be cut")


async def test_cancelled_and_late_requests_free_every_block(engine: Factory) -> None:
    async with running_replica(built(engine)) as served:
        requests = requests_of(3, 30)
        for request in requests:
            request.max_tokens = 300
        for i, request in enumerate(requests):
            if i % 2:
                request.timeout_ms = 5 + i
                received = await ask(served.client, request)
                # The request was refused: its deadline was unreachable, or passed before the verdict.
                if received.usage is None:
                    assert received.error is not None and received.error.error is not None
                    assert received.error.error.reason in (
                        wire.ERROR_REASON_DEADLINE_UNREACHABLE,
                        wire.ERROR_REASON_DEADLINE,
                    )
                    continue
                assert received.usage.finish_reason in (wire.FINISH_REASON_DEADLINE, wire.FINISH_REASON_LENGTH)
            else:
                events = served.client.generate(request)
                await anext(events)
                await events.aclose()  # type: ignore[attr-defined]
        await served.idle()
        served.check_whole()


async def test_load_report_is_accurate(engine: Factory) -> None:
    async with running_replica(built(engine)) as served:
        reports: list[wire.LoadReport] = []

        async def watch() -> None:
            async for report in served.client.watch_load(min_interval_ms=1):
                reports.append(report)

        watching = asyncio.create_task(watch())
        requests = requests_of(4, 20)
        for request in requests:
            request.max_tokens += 60  # The requests run for longer than the interval between two load reports.
        await asyncio.gather(*(ask(served.client, request) for request in requests))
        await served.idle()
        await until(lambda: not (reports[-1].waiting + reports[-1].running + reports[-1].blocks.used))
        watching.cancel()
        assert all(r.blocks.free + r.blocks.cached + r.blocks.used == r.blocks.total for r in reports)
        assert any(report.running > 1 for report in reports)
        last, pool = reports[-1], served.replica.scheduler.pool
        assert (last.waiting, last.running, last.blocks.used) == (0, 0, 0)
        assert last.blocks.cached == sum(block.key is not None for block in pool.blocks)
        assert last.prefill_rate > 0 and last.decode_rate > 0


async def test_drain_finishes_running_requests(engine: Factory) -> None:
    requests = requests_of(5, 10)
    async with running_replica(built(engine)) as served:
        right = await one_by_one(served, requests)
        running = [asyncio.create_task(ask(served.client, request)) for request in requests]
        while served.server.handler.num_live < len(requests):
            await asyncio.sleep(0)
            if all(task.done() for task in running):
                break
        await served.client.drain()
        late = await ask(served.client, requests[0])
        assert late.error is not None and late.error.code == grpc.StatusCode.UNAVAILABLE
        assert [received.tokens for received in await asyncio.gather(*running)] == [
            received.tokens for received in right
        ]
        served.check_whole()


async def test_log_probabilities_come_with_their_tokens(engine: Factory) -> None:
    subject = engine(SHAPE, SystemClock())
    async with running_replica(lambda: subject.replica) as served:
        plain = await ask(served.client, requests_of(6, 1)[0])
        request = requests_of(6, 1)[0]
        request.sampling.num_logprobs = 3
        received = await ask(served.client, request)
        assert received.tokens == plain.tokens
        assert not any(chunk.logprobs for chunk in plain.chunks)
        for chunk in received.chunks:
            assert len(chunk.logprobs) == (len(chunk.token_ids) if subject.tells_logprobs else 0)
            for logprobs in chunk.logprobs:
                likely = [top.logprob for top in logprobs.top]
                assert len(likely) == 3 and likely == sorted(likely, reverse=True)
                assert logprobs.chosen <= likely[0] <= 0
                same = [top.piece for top in logprobs.top if top.logprob == logprobs.chosen]
                assert not same or logprobs.piece in same
