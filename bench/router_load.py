"""Callers of a router or of a replica: at a steady rate, or all at once."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

_CHUNK = 0x12
"""First byte of an event that carries text, from a router and from a replica alike."""

Ask = Callable[[], Any]
"""Starts one call."""
Call = Callable[[], Awaitable[float]]
"""One call from its beginning to its end. Seconds to its first token."""


async def steady(call: Call, rate: float, seconds: float) -> list[float]:
    """Seconds to the first token of each call. Calls begin on time, whether or not others have ended."""
    start = perf_counter()
    calls = []
    for number in range(round(rate * seconds)):
        await asyncio.sleep(max(0.0, start + number / rate - perf_counter()))
        calls.append(asyncio.ensure_future(call()))
    return list(await asyncio.gather(*calls))


def call_of(ask: Ask) -> Call:
    return partial(_first_chunk, ask)


async def _first_chunk(ask: Ask) -> float:
    start, first = perf_counter(), None
    async for event in ask():
        if first is None and event[0] == _CHUNK:
            first = perf_counter() - start
    if first is None:
        raise RuntimeError("an answer without a token")
    return first


async def at_once(asks: Sequence[Ask]) -> tuple[int, float]:
    """Chunks that all the calls brought, and the seconds that took."""
    start = perf_counter()
    counts = await asyncio.gather(*map(_count_chunks, asks))
    return sum(counts), perf_counter() - start


async def _count_chunks(ask: Ask) -> int:
    count = 0
    async for event in ask():
        count += event[0] == _CHUNK
    return count
