"""Capturing an answer changes no byte that the caller receives."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octet.rpc.handlers import CallerGone, Context
from octet.v1 import inference_pb2 as wire
from octet.v1 import specialist_pb2
from router.quality.answer_tap import AnswerTap
from router.quality.answers import ByteBudget, CapturedAnswer, FinishedAnswer
from router.quality.shadow_copy import OrderedShadow, ShadowCounters, ShadowTask
from router.verify.degenerate import describe_degeneration
from tests.router.shadow.harness import SHADOW, accepted, running_shadows
from tests.router.shadow.harness import order as shadow_order
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
def test_a_captured_stream_is_the_same_byte_for_byte(answer: list[specialist_pb2.Chunk], shadowed: list[str]) -> None:
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

    async def scenario() -> None:
        async with running_shadows(primary, shadow) as (harness, _, _shadow):
            for has_shadow, sample in ((False, False), (False, True), (True, True), (True, False)):
                task = harness.make_task() if has_shadow else None
                routed, *received = await harness.ask(task, sample=sample)
                assert received == [event.SerializeToString() for event in events]
                assert wire.InferEvent.FromString(routed).routed.lane.specialist == "writer"
            await harness.settled()
            assert len(harness.events.comparisons) == (2 if answer else 0), "empty answers must not be compared"
            text = "".join(chunk.text for chunk in answer)
            if not describe_degeneration("why?", text, is_cut=False):  # the verifier gets no degenerate text
                assert harness.grader.asked[0] == ("why?", text)

    run(scenario())


USAGE = specialist_pb2.Usage(finish_reason=specialist_pb2.FINISH_REASON_STOP)


def tapped(write: Any, captured: CapturedAnswer, order: Callable[[Any], None]) -> AnswerTap:
    """Return a tap that calls `order` when it requests a shadow copy."""
    candidate = SimpleNamespace(lane_id="primary")
    plan: Any = SimpleNamespace(sample=True, candidate=lambda _: candidate)
    evaluation: Any = SimpleNamespace(capture=lambda: captured)
    shadows: Any = SimpleNamespace(send=lambda task, ordered, receipt: order(receipt))
    nothing: Any = None
    shadow = ShadowTask(shadow_order(), 0, nothing, nothing, nothing, nothing)
    ordered = OrderedShadow(shadow.order, ShadowCounters())
    return AnswerTap(evaluation, shadows, write, plan, ordered, shadow)


@settings(max_examples=50, deadline=None)
@given(
    events=st.lists(st.binary(max_size=20) | chunks.map(each_event), max_size=20),
    fails_at=st.integers(0, 25),
)
def test_only_errors_of_the_callers_writer_are_raised(events: list[bytes], fails_at: int) -> None:
    written: list[bytes] = []

    async def write(raw: bytes) -> None:
        if len(written) == fails_at:
            raise ConnectionError("gone")
        written.append(raw)

    def broken(_: bytes) -> None:
        raise RuntimeError("a mistake")

    async def scenario(captured: CapturedAnswer) -> None:
        capture = tapped(write, captured, broken)
        for raw in events:
            await capture.write(raw)

    captured = CapturedAnswer(ByteBudget(1 << 20), 10_000)
    if fails_at < len(events):
        with pytest.raises(ConnectionError):
            asyncio.run(scenario(captured))
    else:
        asyncio.run(scenario(captured))
    assert written == events[:fails_at]
    passed_on = [raw for raw in written if raw[:1] == b"\x12"]
    assert captured.num_bytes == sum(len(raw) + 4 for raw in passed_on), (
        "only events that were passed to the caller may be captured"
    )


def test_a_request_accepted_twice_orders_one_shadow() -> None:
    ordered: list[bytes] = []

    async def write(_: bytes) -> None: ...

    async def scenario() -> None:
        capture = tapped(write, CapturedAnswer(ByteBudget(100), 100), ordered.append)
        routed: Any = wire.InferEvent(routed=wire.Receipt(request_id="x")).SerializeToString()
        words = [each_event(specialist_pb2.Chunk(text=text)) for text in "ab"]
        for raw in (routed, routed, *words):
            await capture.write(raw)

    asyncio.run(scenario())
    assert len(ordered) == 1


@pytest.mark.parametrize(
    ("num_words", "error", "is_submitted"),
    [
        (300, CallerGone(), True),
        (300, asyncio.CancelledError(), True),
        (300, ValueError(), False),
        (3, CallerGone(), False),
    ],
)
def test_the_long_part_of_an_answer_whose_caller_left_is_submitted(
    num_words: int, error: BaseException, is_submitted: bool
) -> None:
    budget, submitted = ByteBudget(1 << 20), list[FinishedAnswer]()

    async def write(_: bytes) -> None: ...

    async def scenario() -> None:
        tap = tapped(write, CapturedAnswer(budget, 10_000), lambda _: None)
        tap.question, tap._evaluation = "why?", SimpleNamespace(submit=submitted.append)  # type: ignore[assignment]
        with tap:
            receipt = wire.Receipt(request_id="x", tenant="ada", specialist="writer")
            await tap.write(wire.InferEvent(routed=receipt).SerializeToString())
            for _ in range(num_words):
                await tap.write(each_event(specialist_pb2.Chunk(text="Z. ")))
            raise error

    with pytest.raises(type(error)):
        asyncio.run(scenario())
    assert bool(submitted) == is_submitted and bool(budget.taken) == is_submitted
    for each in submitted:
        assert (each.question, each.receipt.tenant, each.captured.text()) == ("why?", "ada", "Z. " * num_words)
        assert each.receipt.usage.finish_reason == wire.FINISH_REASON_CANCELLED
