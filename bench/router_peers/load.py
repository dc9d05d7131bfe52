"""Putting a case to a system."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from bench.router_load import steady
from bench.router_peers.case import SHORT, FirstTokens, Flood
from bench.router_peers.http_caller import CallFailed, Heard
from bench.router_peers.process import RouterProcess
from bench.router_peers.prompt import prompts
from bench.router_peers.way import Caller, Way

_WARM_CALLS, _WARM_AT_ONCE = 2, 4
_CALM_SECONDS, _CALM_SHARE, _MOST_WAITS = 0.05, 0.3, 100
_RAMP = 0.25
"""How long a flood lasts at least before it is counted, in parts of the time that it is."""
_ENOUGH, _LONGER, _MOST_SECONDS = 8, 0.5, 10.0
"""Tokens of each caller on average; a flood that has brought fewer goes on, for so many seconds at most."""


@dataclass(frozen=True, slots=True)
class Took:
    """What a flood brought."""

    tokens: int
    seconds: float
    cpu: float
    """The router's seconds; 0 without one."""
    messages: int
    """In which the tokens came."""


async def first_tokens(way: Way, case: FirstTokens) -> list[float]:
    """Seconds to the first token of each call, on connections that have been used before. Raises CallFailed."""
    texts = prompts(case.prompt_bytes)
    async with way.caller(case.acks_at_once) as caller:
        for _ in range(_WARM_CALLS):
            await asyncio.gather(*(caller.call(next(texts), SHORT) for _ in range(_WARM_AT_ONCE if case.rate else 1)))
        if case.rate is None:
            return [await caller.call(next(texts), SHORT) for _ in range(case.requests)]
        return await steady(lambda: caller.call(next(texts), SHORT), case.rate, case.requests / case.rate)


async def flood(way: Way, case: Flood) -> Took:
    """Raises CallFailed."""
    tally = _Tally()
    async with way.caller(True) as caller:
        callers = [
            asyncio.ensure_future(_again_and_again(caller, case, tally.of(each))) for each in range(case.at_once)
        ]
        try:
            await _all_begun(callers, case, tally)
            before, messages, began, cpu = tally.tokens, tally.messages, perf_counter(), _cpu(way.router)
            await _unless_failed(callers, case.seconds)
            while tally.tokens - before < _ENOUGH * case.at_once and perf_counter() - began < _MOST_SECONDS:
                await _unless_failed(callers, _LONGER)
            if tally.tokens == before:
                raise CallFailed(f"no token came within {perf_counter() - began:.0f} s")
            seconds, spent = perf_counter() - began, _cpu(way.router) - cpu
            return Took(tally.tokens - before, seconds, spent, tally.messages - messages)
        finally:
            for each in callers:
                each.cancel()
            await asyncio.gather(*callers, return_exceptions=True)


async def calm(router: RouterProcess) -> bool:
    """Whether what was begun for callers who have gone is over, or as good as over, within a few seconds."""
    for _ in range(_MOST_WAITS):
        before = router.cpu()
        await asyncio.sleep(_CALM_SECONDS)
        if router.cpu() - before < _CALM_SHARE * _CALM_SECONDS:
            return True
    return False


class _Tally:
    def __init__(self) -> None:
        self.tokens = 0
        self.messages = 0
        self.begun: set[int] = set()
        """Callers who have heard something."""

    def of(self, caller: int) -> Heard:
        def heard(tokens: int, messages: int) -> None:
            self.tokens += tokens
            self.messages += messages
            self.begun.add(caller)

        return heard


async def _again_and_again(caller: Caller, case: Flood, heard: Heard) -> None:
    for prompt in prompts(0):
        await caller.call(prompt, case.order, heard, stream=case.stream)


async def _all_begun(callers: Sequence["asyncio.Task[None]"], case: Flood, tally: _Tally) -> None:
    """All of them have heard something, or it takes too long."""
    began = perf_counter()
    await _unless_failed(callers, _RAMP * case.seconds)
    while len(tally.begun) < len(callers) and perf_counter() - began < _MOST_SECONDS:
        await _unless_failed(callers, _CALM_SECONDS)


async def _unless_failed(callers: Sequence["asyncio.Task[None]"], seconds: float) -> None:
    done, _ = await asyncio.wait(callers, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for each in done:
        each.result()


def _cpu(router: RouterProcess | None) -> float:
    return router.cpu() if router is not None else 0.0
