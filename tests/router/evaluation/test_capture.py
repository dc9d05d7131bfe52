"""The caller gets every byte that it would get if nobody listened."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octet.rpc.handlers import Context
from octet.v1 import inference_pb2 as wire
from octet.v1 import specialist_pb2
from router.quality.answers import ByteBudget, CapturedAnswer
from router.quality.shadow import AnswerTap
from tests.router.shadow.world import SHADOW, accepted, world
from tests.specialist.server.harness import run


def each_event(chunk: specialist_pb2.Chunk) -> bytes:
    event: bytes = wire.InferEvent(chunk=chunk).SerializeToString()
    return event


chunks = st.builds(
    specialist_pb2.Chunk,
    text=st.text(max_size=40),
    token_ids=st.lists(st.integers(0, 200_000), max_size=5),
    logprobs=st.lists(st.builds(specialist_pb2.TokenLogprobs, chosen=st.floats(-20, 0)), max_size=2),
)


@settings(max_examples=25, deadline=None)
@given(answer=st.lists(chunks, max_size=12), shadowed=st.lists(st.text(max_size=20), max_size=5))
def test_a_stream_is_the_same_to_the_byte(answer: list[specialist_pb2.Chunk], shadowed: list[str]) -> None:
    events = [specialist_pb2.GenerateEvent(chunk=chunk) for chunk in answer]

    async def primary(_: specialist_pb2.GenerateRequest, context: Context) -> None:
        await context.write(accepted())
        for event in events:
            await context.write(event)
        await context.write(specialist_pb2.GenerateEvent(usage=USAGE))

    async def shadow(_: specialist_pb2.GenerateRequest, context: Context) -> None:
        await context.write(accepted(SHADOW))
        for text in shadowed:
            await context.write(specialist_pb2.GenerateEvent(chunk=specialist_pb2.Chunk(text=text)))
        await context.write(specialist_pb2.GenerateEvent(usage=USAGE))

    async def story() -> None:
        async with world(primary, shadow) as (here, _, _shadow):
            for errand, sample in ((None, False), (None, True), (here.errand(), True), (here.errand(), False)):
                routed, *heard = await here.ask(errand, sample=sample)
                assert heard == [event.SerializeToString() for event in events]
                assert wire.InferEvent.FromString(routed).routed.lane.specialist == "writer"
            await here.settled()
            assert len(here.told.comparisons) == (2 if answer else 0), "nothing is compared with nothing"
            assert here.grader.asked[0] == ("why?", "".join(chunk.text for chunk in answer))

    run(story())


USAGE = specialist_pb2.Usage(finish_reason=specialist_pb2.FINISH_REASON_STOP)


def tapped(write: Any, kept: CapturedAnswer, order: Callable[[Any], None]) -> AnswerTap:
    """A tap whose shadow is ordered by `order`."""
    candidate = SimpleNamespace(lane_id="primary")
    plan: Any = SimpleNamespace(sample=True, candidate=lambda _: candidate)
    shadow: Any = SimpleNamespace(order=SimpleNamespace(candidate=SimpleNamespace(lane_id="shadow")))
    evaluation: Any = SimpleNamespace(capture=lambda: kept)
    shadows: Any = SimpleNamespace(order=lambda task, receipt: order(receipt))
    return AnswerTap(evaluation, shadows, write, plan, shadow=shadow)


@settings(max_examples=50, deadline=None)
@given(
    events=st.lists(st.binary(max_size=20) | chunks.map(each_event), max_size=20),
    fails_at=st.integers(0, 25),
)
def test_what_the_callers_own_write_does_is_all_that_happens(events: list[bytes], fails_at: int) -> None:
    written: list[bytes] = []

    async def write(raw: bytes) -> None:
        if len(written) == fails_at:
            raise ConnectionError("gone")
        written.append(raw)

    def broken(_: bytes) -> None:
        raise RuntimeError("a mistake")

    async def story(kept: CapturedAnswer) -> None:
        capture = tapped(write, kept, broken)
        for raw in events:
            await capture.write(raw)

    kept = CapturedAnswer(ByteBudget(1 << 20), 10_000)
    if fails_at < len(events):
        with pytest.raises(ConnectionError):
            asyncio.run(story(kept))
    else:
        asyncio.run(story(kept))
    assert written == events[:fails_at]
    passed_on = [raw for raw in written if raw[:1] == b"\x12"]
    assert kept.num_bytes == sum(len(raw) + 4 for raw in passed_on), "what was not passed on was not said"


def test_an_answer_is_heard_of_once_though_it_was_accepted_twice() -> None:
    heard: list[bytes] = []

    async def write(_: bytes) -> None: ...

    async def story() -> None:
        capture = tapped(write, CapturedAnswer(ByteBudget(100), 100), heard.append)
        routed: Any = wire.InferEvent(routed=wire.Receipt(request_id="x")).SerializeToString()
        words = [each_event(specialist_pb2.Chunk(text=text)) for text in "ab"]
        for raw in (routed, routed, *words):
            await capture.write(raw)

    asyncio.run(story())
    assert len(heard) == 1
