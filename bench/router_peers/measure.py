"""Octet's router and its peers, measured beside each other."""

from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench.peers.environment import Say
from bench.record import Record
from bench.router_peers.case import Size, cases
from bench.router_peers.report import records_of
from bench.router_peers.rounds import run_rounds
from bench.router_peers.site import site
from bench.router_peers.spec import ROUTER_PEERS, RouterPeer


@dataclass(frozen=True, slots=True)
class Outcome:
    records: list[Record]
    notes: list[str]
    """Whose settings were what, a line each."""
    failures: list[str]
    """What could not be measured and why, a line each. They have been said already."""


def measure_router_peers(names: tuple[str, ...], cache: Path, say: Say, size: Size) -> Outcome:
    """Raises SiteFailed."""
    known = [ROUTER_PEERS[name] for name in names if name in ROUTER_PEERS]
    unknown = [
        f"{name}: no such router; there are {', '.join(ROUTER_PEERS)}" for name in names if name not in ROUTER_PEERS
    ]
    for line in unknown:
        say(line)
    outcome = uvloop.run(_measure(known, cache, say, size))
    outcome.failures.extend(unknown)
    return outcome


async def _measure(peers: list[RouterPeer], cache: Path, say: Say, size: Size) -> Outcome:
    planned = cases(size)
    async with site(peers, cache, say) as where:
        found = await run_rounds(where, planned, size.runs, say)
        records = records_of(found, planned, [peer.name for peer in peers])
        return Outcome(records, where.notes, where.failures)
