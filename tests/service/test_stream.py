"""What waits for a slow caller: all of it, in order, in one piece, up to a bound."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from specialist.sampling import TokenLogprobs
from specialist.service.answer import Piece
from specialist.service.job import News, Usage, Verdict
from specialist.service.stream import Stream

USAGE = Usage("stop", None, 1, 1, 0, "", 0, 0.0, 0.0, 0.0, 0.0)
pieces = st.builds(
    lambda text, tokens: Piece(text, tuple(tokens), tuple(TokenLogprobs(0.0, ()) for _ in tokens)),
    st.text(max_size=5),
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
)


@given(st.lists(pieces, max_size=20), st.lists(st.booleans(), min_size=22, max_size=22))
def test_nothing_is_lost_whenever_the_caller_reads(sent: list[Piece], reads: list[bool]) -> None:
    async def scenario() -> list[News]:
        stream = Stream(10_000, overflow=lambda: None)
        heard: list[News] = []
        all_news: list[News] = [Verdict(0), *sent, USAGE]
        for news, read in zip(all_news, reads, strict=False):
            stream.put(news)
            if read:
                heard += await stream.take()
        if not heard or heard[-1] is not USAGE:
            heard += await stream.take()
        return heard

    first, *middle, last = asyncio.run(scenario())
    assert isinstance(first, Verdict) and last is USAGE
    joined = [piece for piece in middle if isinstance(piece, Piece)]
    assert len(joined) == len(middle) <= len(sent)
    assert "".join(piece.text for piece in joined) == "".join(piece.text for piece in sent)
    for part in ("tokens", "logprobs"):
        assert [x for p in joined for x in getattr(p, part)] == [x for p in sent for x in getattr(p, part)]


def test_too_much_is_dropped_once_and_for_all() -> None:
    async def scenario() -> None:
        overflows: list[int] = []
        stream = Stream(100, overflow=lambda: overflows.append(1))
        for _ in range(50):
            stream.put(Piece("ten bytes.", (1,)))
        stream.put(USAGE)
        assert overflows == [1] and stream.overflowed
        assert await stream.take() == []

    asyncio.run(scenario())


def test_a_caller_that_keeps_up_never_overflows() -> None:
    async def scenario() -> None:
        stream = Stream(100, overflow=lambda: None)
        for _ in range(50):
            stream.put(Piece("ten bytes.", (1,)))
            assert len(await stream.take()) == 1
        assert not stream.overflowed

    asyncio.run(scenario())


GAP = 0.1


async def _hear(stream: Stream, sent: list[tuple[float, News]]) -> list[tuple[float, list[News]]]:
    """What is taken when, if each is put so many seconds after the beginning."""
    loop = asyncio.get_running_loop()
    began, heard = loop.time(), list[tuple[float, list[News]]]()
    for at, news in sent:
        loop.call_at(began + at, stream.put, news)
    while not heard or heard[-1][1][-1] is not USAGE:
        heard.append((0.0, await stream.take()))
        heard[-1] = (loop.time() - began, heard[-1][1])
    return heard


def heard_of(gap: float, *sent: tuple[float, News]) -> list[tuple[float, list[News]]]:
    async def scenario() -> list[tuple[float, list[News]]]:
        return await _hear(Stream(10_000, lambda: None, gap), list(sent))

    return asyncio.run(scenario())


def test_a_piece_that_comes_soon_after_another_waits_for_those_behind_it() -> None:
    a, b, c, d = (Piece(letter, (1,)) for letter in "abcd")
    heard = heard_of(GAP, (0.0, Verdict(0)), (0.0, a), (0.03, b), (0.06, c), (0.3, d), (0.5, USAGE))
    assert [news for _, news in heard] == [[Verdict(0), a], [Piece("bc", (1, 1))], [d], [USAGE]]
    (first, _), (second, _), (third, _), _ = heard
    assert first < 0.02 and second - first >= GAP - 0.001, "the first at once, the next not before its time"
    assert third < 0.3 + GAP / 2, "who comes after a pause does not wait"


def test_the_end_waits_for_nobody() -> None:
    a, b = Piece("a", (1,)), Piece("b", (1,))
    heard = heard_of(30.0, (0.0, a), (0.01, b), (0.02, USAGE))
    assert [news for _, news in heard] == [[a], [b, USAGE]] and heard[-1][0] < 5.0


def test_without_a_gap_each_comes_by_itself() -> None:
    async def scenario() -> None:
        stream = Stream(1000, lambda: None, 0.0)
        for news in (Piece("a", (1,)), Piece("b", (1,)), USAGE):
            stream.put(news)
            assert stream._ready.is_set() and await stream.take() == [news]

    asyncio.run(scenario())


def test_much_does_not_wait_for_its_time() -> None:
    """What waits by our own doing never counts against a caller that reads."""

    async def scenario() -> None:
        overflows: list[int] = []
        stream = Stream(100, overflow=lambda: overflows.append(1), gap=60.0)
        stream.put(Piece("first", (1,)))
        await stream.take()
        taken = 0
        for _ in range(50):
            stream.put(Piece("ten bytes.", (1,)))
            if stream._ready.is_set():
                taken += sum(len(news.tokens) for news in await stream.take() if isinstance(news, Piece))
        assert not overflows and taken >= 45

    asyncio.run(scenario())


def test_too_much_is_noticed_although_it_is_not_its_time() -> None:
    async def scenario() -> None:
        overflows: list[int] = []
        stream = Stream(100, overflow=lambda: overflows.append(1), gap=60.0)
        for _ in range(50):
            stream.put(Piece("ten bytes.", (1,)))
        assert overflows == [1]
        assert await asyncio.wait_for(stream.take(), 5.0) == []

    asyncio.run(scenario())
