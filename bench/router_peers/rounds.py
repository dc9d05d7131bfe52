"""Rounds in which every router is put into every situation, one router at a time."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from bench.peers.environment import Say
from bench.peers.process import PeerFailed
from bench.router_peers.case import FirstTokens, Flood
from bench.router_peers.http_caller import CallFailed
from bench.router_peers.load import Took, calm, first_tokens, flood
from bench.router_peers.site import Site
from bench.router_peers.way import OCTET, Way, until_it_answers
from bench.router_site import SiteFailed

_WAKE_SECONDS = 60.0
_CASE_SECONDS = 120.0
_PAUSES = (1.0, 10.0, 40.0)
"""Seconds before each further attempt. What a moment without processors has tripped is trusted again after 30."""


@dataclass(slots=True)
class Found:
    """Round by round, by case and system."""

    first: dict[tuple[str, str], list[list[float]]] = field(default_factory=lambda: defaultdict(list))
    """Seconds to the first token of each call."""
    floods: dict[tuple[str, str], list[Took]] = field(default_factory=lambda: defaultdict(list))
    memory: dict[str, int] = field(default_factory=dict)
    """Bytes, by router, at the end."""


async def run_rounds(site: Site, cases: Sequence[FirstTokens | Flood], runs: int, say: Say) -> Found:
    """Whoever fails is told and left out; what it did in earlier rounds counts. Raises SiteFailed if Octet fails."""
    found = Found()
    for number in range(runs):
        say(f"round {number + 1} of {runs}")
        for position, case in enumerate(cases):
            peers = [name for name in site.routers() if name != OCTET]
            systems = [system for system in (*case.systems, *peers) if system in site.ways]
            for system in Random(number * len(cases) + position).sample(systems, len(systems)):
                await _attempt(site, system, case, found, say)
    for name, router in site.routers().items():
        try:
            found.memory[name] = router.memory()
        except OSError as error:
            site.notes.append(f"{name}: its memory could not be read: {error}")
    return found


async def _attempt(site: Site, system: str, case: FirstTokens | Flood, found: Found, say: Say) -> None:
    """Whoever fails is given another chance, and that is noted."""
    for pause in (*_PAUSES, None):
        way = site.ways.get(system)
        if way is None:
            return
        try:
            async with asyncio.timeout(_CASE_SECONDS):
                if not await _measured(way, case, found):
                    site.notes.append(f"{system}: still at work some seconds after its callers had gone: {case.name}")
                return
        except (CallFailed, PeerFailed, TimeoutError) as error:
            why = f"{system}: {case.name}: {error or f'not over after {_CASE_SECONDS:g} s'}"
            if pause is not None and not isinstance(error, PeerFailed):
                if (again := f"tried again: {why}") not in site.notes:
                    site.notes.append(again)
                say(again)
                await asyncio.sleep(pause)
            else:
                say(why)
                _fail(site, way, why)


def _fail(site: Site, way: Way, why: str) -> None:
    if way.router is None or way.router.name == OCTET:
        raise SiteFailed(why)
    site.failures.append(why)
    site.notes.append(f"left out: {why}")
    site.drop(way.router.name)


async def _measured(way: Way, case: FirstTokens | Flood, found: Found) -> bool:
    """Whether the router was at rest before and after."""
    was_calm = is_calm = True
    if way.router is not None:
        way.router.resume()
        await until_it_answers(way, _WAKE_SECONDS)
        was_calm = await calm(way.router)
    if isinstance(case, Flood):
        found.floods[case.name, way.system].append(await flood(way, case))
    else:
        found.first[case.name, way.system].append(await first_tokens(way, case))
    if way.router is not None:
        is_calm = await calm(way.router)
        way.router.check()
        way.router.pause()
    return was_calm and is_calm
