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
