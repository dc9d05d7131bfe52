"""Rounds in which every router is measured in every situation, one router at a time."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from time import perf_counter

from bench.processes import PeerFailed, SiteFailed
from bench.router_peers.callers import Caller, CallFailed, OnTokens, RoutePath, RouterProcess, prompts, until_it_answers
from bench.router_peers.cases import OCTET, SHORT, FirstTokens, Flood
from bench.router_peers.site import RouterPeersSite
from bench.router_site import becomes_idle, steady

_WARM_CALLS, _WARM_AT_ONCE = 2, 4
_CALM_SECONDS, _CALM_SHARE, _MOST_WAITS = 0.05, 0.3, 100
_RAMP = 0.25  # share of a flood's time before counting begins
_ENOUGH, _LONGER, _MOST_SECONDS = 8, 0.5, 10.0
"""A flood with under `_ENOUGH` tokens per caller continues by `_LONGER` seconds at a time, up to `_MOST_SECONDS`."""


@dataclass(frozen=True, slots=True)
class FloodResult:
    tokens: int
    seconds: float
    cpu: float  # CPU seconds of the router; 0 without one
    messages: int  # messages with tokens


async def first_tokens(path: RoutePath, case: FirstTokens) -> list[float]:
    texts = prompts(case.prompt_bytes)
    async with path.caller(case.acks_at_once) as caller:
        for _ in range(_WARM_CALLS):
            await asyncio.gather(*(caller.call(next(texts), SHORT) for _ in range(_WARM_AT_ONCE if case.rate else 1)))
        if case.rate is None:
            return [await caller.call(next(texts), SHORT) for _ in range(case.requests)]
        return await steady(lambda: caller.call(next(texts), SHORT), case.rate, case.requests / case.rate)


async def flood(path: RoutePath, case: Flood) -> FloodResult:
    received = _ReceivedTokens()
    async with path.caller(True) as caller:
        callers = [
            asyncio.ensure_future(_again_and_again(caller, case, received.count_for(each)))
            for each in range(case.at_once)
        ]
        try:
            await _all_begun(callers, case, received)
            before, messages, began, cpu = received.tokens, received.messages, perf_counter(), _cpu(path.router)
            await _unless_failed(callers, case.seconds)
            while received.tokens - before < _ENOUGH * case.at_once and perf_counter() - began < _MOST_SECONDS:
                await _unless_failed(callers, _LONGER)
            if received.tokens == before:
                raise CallFailed(f"no token arrived within {perf_counter() - began:.0f} s")
            seconds, spent = perf_counter() - began, _cpu(path.router) - cpu
            return FloodResult(received.tokens - before, seconds, spent, received.messages - messages)
        finally:
            for each in callers:
                each.cancel()
            await asyncio.gather(*callers, return_exceptions=True)


class _ReceivedTokens:
    def __init__(self) -> None:
        self.tokens = 0
        self.messages = 0
        self.begun: set[int] = set()  # callers that have received a token

    def count_for(self, caller: int) -> OnTokens:
        def on_tokens(tokens: int, messages: int) -> None:
            self.tokens += tokens
            self.messages += messages
            self.begun.add(caller)

        return on_tokens


async def _again_and_again(caller: Caller, case: Flood, on_tokens: OnTokens) -> None:
    for prompt in prompts(0):
        await caller.call(prompt, case.order, on_tokens, stream=case.stream)


async def _all_begun(callers: Sequence["asyncio.Task[None]"], case: Flood, received: _ReceivedTokens) -> None:
    began = perf_counter()
    await _unless_failed(callers, _RAMP * case.seconds)
    while len(received.begun) < len(callers) and perf_counter() - began < _MOST_SECONDS:
        await _unless_failed(callers, _CALM_SECONDS)


async def _unless_failed(callers: Sequence["asyncio.Task[None]"], seconds: float) -> None:
    done, _ = await asyncio.wait(callers, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for each in done:
        each.result()


def _cpu(router: RouterProcess | None) -> float:
    return router.cpu() if router is not None else 0.0


_WAKE_SECONDS = 60.0
_CASE_SECONDS = 120.0
_PAUSES = (1.0, 10.0, 40.0)
"""Seconds before each further attempt. A backend that failed for lack of CPU is trusted again after 30 seconds."""


@dataclass(slots=True)
class RoundResults:
    first: dict[tuple[str, str], list[list[float]]] = field(default_factory=lambda: defaultdict(list))
    """Seconds until the first token of each call."""
    floods: dict[tuple[str, str], list[FloodResult]] = field(default_factory=lambda: defaultdict(list))
    memory: dict[str, int] = field(default_factory=dict)  # bytes by router, at the end


async def run_rounds(site: RouterPeersSite, cases: Sequence[FirstTokens | Flood], runs: int) -> RoundResults:
    """Run all cases. A peer that fails is then left out; its earlier rounds count. Raises SiteFailed if Octet fails."""
    found = RoundResults()
    for number in range(runs):
        site.findings.say(f"round {number + 1} of {runs}")
        for position, case in enumerate(cases):
            peers = [name for name in site.routers() if name != OCTET]
            systems = [system for system in (*case.systems, *peers) if system in site.paths]
            for system in Random(number * len(cases) + position).sample(systems, len(systems)):
                await _attempt(site, system, case, found)
    for name, router in site.routers().items():
        try:
            found.memory[name] = router.memory()
        except OSError as error:
            site.findings.notes.append(f"{name}: its memory could not be read: {error}")
    return found


async def _attempt(site: RouterPeersSite, system: str, case: FirstTokens | Flood, found: RoundResults) -> None:
    for pause in (*_PAUSES, None):
        path = site.paths.get(system)
        if path is None:
            return
        try:
            async with asyncio.timeout(_CASE_SECONDS):
                if not await _measured(path, case, found):
                    site.findings.notes.append(f"{system}: still busy after its callers disconnected: {case.name}")
                return
        except (CallFailed, PeerFailed, TimeoutError) as error:
            why = f"{system}: {case.name}: {error or f'not finished after {_CASE_SECONDS:g} s'}"
            if pause is not None and not isinstance(error, PeerFailed):
                if (again := f"tried again: {why}") not in site.findings.notes:
                    site.findings.notes.append(again)
                site.findings.say(again)
                await asyncio.sleep(pause)
            elif path.router is None or path.router.name == OCTET:
                raise SiteFailed(why) from error
            else:
                site.findings.fail(why)
                site.drop(path.router.name)


async def _measured(path: RoutePath, case: FirstTokens | Flood, found: RoundResults) -> bool:
    was_calm = is_calm = True
    if path.router is not None:
        path.router.resume()
        await until_it_answers(path, _WAKE_SECONDS)
        was_calm = await becomes_idle(path.router.cpu, _CALM_SHARE, _CALM_SECONDS, _MOST_WAITS)
    if isinstance(case, Flood):
        found.floods[case.name, path.system].append(await flood(path, case))
    else:
        found.first[case.name, path.system].append(await first_tokens(path, case))
    if path.router is not None:
        is_calm = await becomes_idle(path.router.cpu, _CALM_SHARE, _CALM_SECONDS, _MOST_WAITS)
        path.router.check()
        path.router.pause()
    return was_calm and is_calm
