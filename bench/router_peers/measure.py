"""Figures of Octet's router and its peers."""

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import sub, truediv
from pathlib import Path
from random import Random
from statistics import median

import uvloop

from bench.router_peers import cases
from bench.router_peers.cases import OCTET, FirstTokens, Flood
from bench.router_peers.rounds import FloodResult, RoundResults, run_rounds
from bench.router_peers.site import ROUTER_PEERS, RouterPeer, site
from bench.timing import ENOUGH, Findings, Say, Targets
from simulation.results import BenchRecord, percentile, summary

BENCH = "router peers"
P50, P99 = "added to the first token, p50", "added to the first token, p99"
STALL = "more than where acknowledgements come at once, p50"
LITELLM, SGLANG = "litellm", "sglang"
_WHOLE = "first token, p50"
_BACKEND = "first token of a backend"
_RESAMPLES = 200
_BASES = {OCTET: cases.REPLICA_LIMIT, cases.CLASSIFIED: cases.REPLICA_LIMIT, cases.GRPC: cases.GRPC_LIMIT}
_LIMITS = {cases.LIMIT, cases.GRPC_LIMIT, cases.REPLICA_LIMIT}
_AT_ONCE = tuple(map(cases.rate_case, cases.RATES))
TARGETS: Targets = {
    (f"{cases.SERIAL} vs {LITELLM}", P50): "<= 0.1 x",
    **{(f"{case} vs {SGLANG}", P50): "<= 2 ms" for case in (cases.SERIAL, *_AT_ONCE)},
    (cases.SERIAL + cases.STOCK, STALL): "no stall: < 2 ms",
    (f"{cases.SHORT_STREAMS} vs {LITELLM}", "streams per CPU second"): ">= 10 x",
    **{(f"{case} vs {LITELLM}", "tokens per CPU second"): ">= 10 x" for case in (cases.LONG_STREAMS, cases.PACED)},
    **{(f"{case} vs {SGLANG}", "tokens per CPU second"): ">= 0.33 x" for case in (cases.LONG_STREAMS, cases.PACED)},
}


def build_records(
    found: RoundResults, planned: Sequence[FirstTokens | Flood], peers: Sequence[str]
) -> list[BenchRecord]:
    firsts = [case for case in planned if isinstance(case, FirstTokens)]
    floods = [case for case in planned if isinstance(case, Flood)]
    return [
        *(record for case in firsts for record in _first_records(found, case, peers)),
        *(record for case in floods for record in _flood_records(found, case, peers)),
        *(summary([size / 1e6], BENCH, "memory", "router", "MB", name) for name, size in found.memory.items()),
        *(record for peer in peers for record in _comparisons(found, floods, peer)),
        *_stalls(found, peers),
    ]


def _base(system: str) -> str:
    """Return the path that the system is compared with: a call without a router to a backend of the same kind."""
    return _BASES.get(system, cases.LIMIT)


def _whole_p50(found: RoundResults, case: str, system: str) -> list[float]:
    return [percentile(each, 50) * 1e3 for each in found.first[case, system]]


def added_p50(found: RoundResults, case: str, system: str) -> list[float]:
    rounds = zip(found.first[case, system], found.first[case, _base(system)], strict=False)
    return [(percentile(mine, 50) - percentile(bare, 50)) * 1e3 for mine, bare in rounds]


def _added_p99(found: RoundResults, case: str, system: str) -> list[float]:
    """Return bootstrap samples of the added p99 in milliseconds, drawn from the calls of all rounds."""
    mine, bare = (list(chain(*found.first[case, each])) for each in (system, _base(system)))
    random = Random(0)
    return [
        (percentile(random.choices(mine, k=len(mine)), 99) - percentile(random.choices(bare, k=len(bare)), 99)) * 1e3
        for _ in range(_RESAMPLES)
    ]


def _first_records(found: RoundResults, case: FirstTokens, peers: Sequence[str]) -> Iterator[BenchRecord]:
    for system in (*case.systems, *peers):
        rounds = found.first[case.name, system]
        if not rounds:
            continue
        enough = sum(map(len, rounds)) >= ENOUGH
        if system in _LIMITS:
            for percent in (50, 99) if enough else (50,):
                samples = [percentile(each, percent) * 1e3 for each in rounds]
                yield summary(samples, BENCH, case.name, f"{_BACKEND}, p{percent}", "ms", system)
            continue
        yield summary(_whole_p50(found, case.name, system), BENCH, case.name, _WHOLE, "ms", system)
        yield summary(added_p50(found, case.name, system), BENCH, case.name, P50, "ms", system)
        if enough:
            drawn = _added_p99(found, case.name, system)
            low, high = percentile(drawn, 10), percentile(drawn, 90)
            yield BenchRecord(BENCH, case.name, system, P99, "ms", median(drawn), low, high, len(rounds))


def _amount(case: Flood, took: FloodResult) -> float:
    return took.tokens if case.counts == "tokens" else took.tokens / case.order.tokens


def _flood_records(found: RoundResults, case: Flood, peers: Sequence[str]) -> Iterator[BenchRecord]:
    for system in (*case.systems, *peers):
        rounds = found.floods[case.name, system]
        if not rounds:
            continue
        unit = "tok/s" if case.counts == "tokens" else "requests/s"
        by_clock = [_amount(case, took) / took.seconds for took in rounds]
        yield summary(by_clock, BENCH, case.name, f"{case.counts} a second", unit, system)
        if system not in _LIMITS:
            yield summary(_by_cpu(found, case, system), BENCH, case.name, f"{case.counts} per CPU second", "", system)
            busy = [100 * took.cpu / took.seconds for took in rounds]
            yield summary(busy, BENCH, case.name, "of its core", "%", system)
        if case.counts == "tokens" and system not in peers:
            joined = [took.tokens / max(1, took.messages) for took in rounds]
            yield summary(joined, BENCH, case.name, "tokens a message", "", system)


def _by_cpu(found: RoundResults, case: Flood, system: str) -> list[float]:
    return [_amount(case, took) / took.cpu for took in found.floods[case.name, system]]


def _comparisons(found: RoundResults, floods: Sequence[Flood], peer: str) -> Iterator[BenchRecord]:
    for name in (cases.SERIAL, *map(cases.prompt_case, cases.PROMPTS), *_AT_ONCE):
        case = f"{name} vs {peer}"
        ours, its = (_whole_p50(found, name, system) for system in (OCTET, peer))
        yield from _compare(ours, its, case, _WHOLE, "ms")
        ours, its = (added_p50(found, name, system) for system in (OCTET, peer))
        yield from _compare(ours, its, case, P50, "x" if peer == LITELLM else "ms")
    for flood in floods:
        ours, its = (_by_cpu(found, flood, system) for system in (OCTET, peer))
        yield from _compare(ours, its, f"{flood.name} vs {peer}", f"{flood.counts} per CPU second", "x")


def _compare(ours: Sequence[float], its: Sequence[float], case: str, metric: str, unit: str) -> Iterator[BenchRecord]:
    """Compare Octet with a peer, round by round: by ratio if the unit is "x", otherwise by difference."""
    if samples := list(map(truediv if unit == "x" else sub, ours, its)):
        yield summary(samples, BENCH, case, metric, unit, OCTET)


def _stalls(found: RoundResults, peers: Sequence[str]) -> Iterator[BenchRecord]:
    for system in (OCTET, *peers):
        rounds = zip(found.first[cases.SERIAL + cases.STOCK, system], found.first[cases.SERIAL, system], strict=False)
        more = [(percentile(stock, 50) - percentile(quick, 50)) * 1e3 for stock, quick in rounds]
        if more:
            yield summary(more, BENCH, cases.SERIAL + cases.STOCK, STALL, "ms", system)


def measure_router_peers(names: tuple[str, ...], cache: Path, say: Say, size: cases.Size) -> Findings:
    findings = Findings(say)
    for name in names:
        if name not in ROUTER_PEERS:
            findings.fail(f"{name}: unknown router (known: {', '.join(ROUTER_PEERS)})")
    known = [ROUTER_PEERS[name] for name in names if name in ROUTER_PEERS]
    uvloop.run(_measure(known, cache, findings, size))
    return findings


async def _measure(peers: list[RouterPeer], cache: Path, findings: Findings, size: cases.Size) -> None:
    planned = cases.all_cases(size)
    async with site(peers, cache, findings) as where:
        found = await run_rounds(where, planned, size.runs)
        findings.records += build_records(found, planned, [peer.name for peer in peers])
