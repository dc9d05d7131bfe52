"""Updates for a slow caller are merged, and their size is bounded. Unless they exceed the bound, they arrive complete
and in order."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from simulation.event_loop import HeapLoop
from specialist.scheduling.sequence import SampledLogprobs
from specialist.server.output_stream import OutputStream
from specialist.server.served_request import AnswerChunk, Enqueued, RequestUpdate, RequestUsage
from tests.patience import PATIENCE

USAGE = RequestUsage("stop", None, 1, 1, 0, "", 0, 0.0, 0.0, 0.0, 0.0)
pieces = st.builds(
    lambda text, tokens: AnswerChunk(text, tuple(tokens), tuple(SampledLogprobs(0.0, ()) for _ in tokens)),
    st.text(max_size=5),
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
)


@given(st.lists(pieces, max_size=20), st.lists(st.booleans(), min_size=22, max_size=22))
def test_nothing_is_lost_whenever_the_caller_reads(sent: list[AnswerChunk], reads: list[bool]) -> None:
    async def scenario() -> list[RequestUpdate]:
        stream = OutputStream(10_000, on_overflow=lambda: None)
        received: list[RequestUpdate] = []
        all_news: list[RequestUpdate] = [Enqueued(0), *sent, USAGE]
        for news, read in zip(all_news, reads, strict=False):
            stream.put(news)
            if read:
                received += await stream.take()
        if not received or received[-1] is not USAGE:
            received += await stream.take()
        return received

    first, *middle, last = asyncio.run(scenario())
    assert isinstance(first, Enqueued) and last is USAGE
    joined = [piece for piece in middle if isinstance(piece, AnswerChunk)]
    assert len(joined) == len(middle) <= len(sent)
    assert "".join(piece.text for piece in joined) == "".join(piece.text for piece in sent)
    for part in ("tokens", "logprobs"):
        assert [x for p in joined for x in getattr(p, part)] == [x for p in sent for x in getattr(p, part)]


async def test_overflow_drops_all_later_updates() -> None:
    overflows: list[int] = []
    stream = OutputStream(100, on_overflow=lambda: overflows.append(1))
    for _ in range(50):
        stream.put(AnswerChunk("ten bytes.", (1,)))
    stream.put(USAGE)
    assert overflows == [1] and stream.overflowed
    assert await stream.take() == []


async def test_a_caller_that_keeps_up_never_overflows() -> None:
    stream = OutputStream(100, on_overflow=lambda: None)
    for _ in range(50):
        stream.put(AnswerChunk("ten bytes.", (1,)))
        assert len(await stream.take()) == 1
    assert not stream.overflowed


GAP = 0.1


async def _take_all(
    stream: OutputStream, sent: list[tuple[float, RequestUpdate]]
) -> list[tuple[float, list[RequestUpdate]]]:
    """Put each update into the stream at its time, in seconds after the start. Return the updates that each read
    returned, with the time of the read."""
    loop = asyncio.get_running_loop()
    began, received = loop.time(), list[tuple[float, list[RequestUpdate]]]()
    for at, news in sent:
        loop.call_at(began + at, stream.put, news)
    while not received or received[-1][1][-1] is not USAGE:
        received.append((0.0, await stream.take()))
        received[-1] = (loop.time() - began, received[-1][1])
    return received


def taken_in_simulated_time(gap: float, *sent: tuple[float, RequestUpdate]) -> list[tuple[float, list[RequestUpdate]]]:
    async def scenario() -> list[tuple[float, list[RequestUpdate]]]:
        return await _take_all(OutputStream(10_000, lambda: None, gap), list(sent))

    loop = HeapLoop()
    try:
        received: list[tuple[float, list[RequestUpdate]]] = loop.run_until_complete(scenario())
    finally:
        loop.close()
    return received


def test_chunks_within_the_gap_are_merged() -> None:
    a, b, c, d = (AnswerChunk(letter, (1,)) for letter in "abcd")
    received = taken_in_simulated_time(GAP, (0.0, Enqueued(0)), (0.0, a), (0.03, b), (0.06, c), (0.3, d), (0.5, USAGE))
    assert [news for _, news in received] == [[Enqueued(0), a], [AnswerChunk("bc", (1, 1))], [d], [USAGE]]
    (first, _), (second, _), (third, _), _ = received
    assert first < 0.02 and second - first >= GAP - 0.001, (
        "the first chunk must be sent immediately, the next after the gap"
    )
    assert third < 0.3 + GAP / 2, "a chunk after a pause must not wait"


def test_usage_does_not_wait_for_the_gap() -> None:
    a, b = AnswerChunk("a", (1,)), AnswerChunk("b", (1,))
    received = taken_in_simulated_time(30.0, (0.0, a), (0.01, b), (0.02, USAGE))
    assert [news for _, news in received] == [[a], [b, USAGE]] and received[-1][0] < 5.0


async def test_without_a_gap_each_update_is_sent_at_once() -> None:
    stream = OutputStream(1000, lambda: None, 0.0)
    for news in (AnswerChunk("a", (1,)), AnswerChunk("b", (1,)), USAGE):
        stream.put(news)
        assert stream._ready.is_set() and await stream.take() == [news]


async def test_many_updates_do_not_wait_for_the_gap() -> None:
    """Chunks wait until a minimum time (the gap) has passed since the last one was sent. If too many wait, they must be
    sent early instead of overflowing."""
    overflows: list[int] = []
    stream = OutputStream(100, on_overflow=lambda: overflows.append(1), gap=60.0)
    stream.put(AnswerChunk("first", (1,)))
    await stream.take()
    taken = 0
    for _ in range(50):
        stream.put(AnswerChunk("ten bytes.", (1,)))
        if stream._ready.is_set():
            taken += sum(len(news.tokens) for news in await stream.take() if isinstance(news, AnswerChunk))
    assert not overflows and taken >= 45


async def test_overflow_is_noticed_during_the_gap() -> None:
    overflows: list[int] = []
    stream = OutputStream(100, on_overflow=lambda: overflows.append(1), gap=60.0)
    for _ in range(50):
        stream.put(AnswerChunk("ten bytes.", (1,)))
    assert overflows == [1]
    assert await asyncio.wait_for(stream.take(), PATIENCE) == []
