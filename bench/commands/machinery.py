"""`octet bench kv`, `scheduler`, `router`, `doors`, `overview`, `sessions`, `receipts` and `tracing`."""

import argparse
from math import inf
from pathlib import Path

from bench import hit_rate, kv, scheduler
from bench.commands.common import add_bench, add_model, get_runs, names, publish, publish_findings, say
from bench.timing import table_by_metric
from octet.cli.arguments import Commands, integer_type, parse_positive
from simulation.traces import read_trace

KV = """\
Time the block pool: allocating and freeing with and without eviction, sharing
a cached prefix, and hashing and matching a prompt, compared with bare sha256
over the same bytes ("limit").

With --trace, replay a recorded trace instead, one request after another, and
show the share of its blocks found by pools of different sizes, compared with
an infinite cache ("limit"). These are counts: one run, no spread.
"""
SCHEDULER = """\
Time the scheduler alone, without an engine. A step is the work of a replica
between two forward passes: commit, take the events, assemble. It is timed with
many running or waiting requests, a blocked queue, chunked prompts, speculation
and preemption. Submission and cancellation are timed as well.

Then time what the host does in a decode step of the GPU engine, by phase, with
the engine's thread and a decoder that has its tokens at once. What a real GPU
adds to it is not measured: two copies, the launch of a graph and an event.
"""
ROUTER = """\
Time the router in front of simulated replicas, two for each of the eight
specialists: what it adds to the time to first token at a steady rate, compared
with calling a replica directly ("limit"); how many tokens one core relays; its
memory; and the cost of a decision by rule, from the cache and by the
classifier. The router has its own core; all other processes share the rest.

With --peers, compare it with other routers instead, each before fast backends
that speak its protocol at the same pace: litellm (LiteLLM's proxy) and sglang
(sglang-router). Measured are the time added to the first token, with one call
after another and at 10 to 100 requests a second, for prompts of up to 220 KB,
with a client that acknowledges at once and with a stock client; streams, tokens
and whole answers per second and per CPU second; and memory. Each peer is
installed into its own environment below $OCTET_CACHE (default: ~/.cache/octet).
Systems that are not being measured are stopped. A peer that cannot be
installed, dies or hangs is reported and left out; the exit code is then 1. The
99th percentile needs 200 requests; its spread is found by resampling.
"""
DOORS = """\
Time the first token through both endpoints of a router, gRPC and HTTP, at a
steady rate over simulated replicas, with requests that name their specialist:
at rest, and with 500 idle connections whose callers never finish their request
or never read their answer.
"""
OVERVIEW = """\
Measure what watching costs a router: its CPU at a steady rate of requests for
eight specialists with two simulated replicas each, with and without an open
dashboard, and the delay until a watcher sees a change.
"""
SESSIONS = """\
Hold a conversation of 20 turns with a replica of a real model through a router,
and time how long each turn waits for its first token (TTFT), with and without
reuse of earlier computation.
"""
RECEIPTS = """\
Time listing a few of very many receipts: the newest, those of a rare
specialist, failed ones of one tenant, and none at all; and how long the event
loop is blocked meanwhile. Uses a new SQLite file or your own empty database.
"""
TRACING = """\
Measure what traces cost: the same requests through a router to one replica, in
separate processes, without traces and with every request traced and sent to a
collector; with a real model and with one that takes no time. With --beside,
another checkout of this project does the same in the same rounds.
"""
_RECEIPTS, _QUICK_RECEIPTS = 100_000, 2_000


def add_kv(benches: Commands) -> None:
    def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
        if arguments.trace is not None:
            return _replay_trace(arguments)
        if arguments.plot is not None or arguments.pool_sizes is not None:
            parser.error("--plot and --pool-sizes require --trace")
        sizes = kv.POOL_SIZES[:2] if arguments.quick else kv.POOL_SIZES
        return publish(arguments, kv.measure_kv(get_runs(arguments), sizes), kv.TARGETS)

    smaller = "no pool above 10,000 blocks (with --trace, only the largest pool)"
    summary = "measure the block pool's operations and its hit rates on a trace"
    parser = add_bench(benches, "kv", KV, summary, smaller, 31, run)
    trace = parser.add_argument_group("replaying a trace")
    trace.add_argument("--trace", type=Path, metavar="FILE", help="a trace in the Mooncake format (JSON lines)")
    pool_size = integer_type(1, inf, "a pool size must be at least 1 block")
    sizes = f"blocks of 512 tokens (default: {' '.join(map(str, hit_rate.POOL_SIZES))})"
    trace.add_argument("--pool-sizes", type=pool_size, nargs="+", metavar="N", help=sizes)
    trace.add_argument("--plot", type=Path, metavar="FILE", help="plot the hit rates as .svg or .png")


def _replay_trace(arguments: argparse.Namespace) -> int:
    usual = hit_rate.POOL_SIZES[-1:] if arguments.quick else hit_rate.POOL_SIZES
    requests = read_trace(arguments.trace)
    infinite = hit_rate.replay_infinite(requests)
    replays = hit_rate.replay_pools(requests, sorted(set(arguments.pool_sizes or usual)))
    records = hit_rate.hit_rate_records(infinite, replays)
    publish(arguments, records, table=table_by_metric(records))
    if arguments.plot is not None:
        hit_rate.plot_hit_rate(arguments.plot, infinite, replays)
    return 0


def add_scheduler(benches: Commands) -> None:
    def run(_: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
        from bench import host_work  # loads PyTorch

        runs, most = get_runs(arguments), 2 if arguments.quick else None
        waiting, running = scheduler.NUMS_WAITING[:most], host_work.NUMS_RUNNING[:most]
        records = [*scheduler.measure_scheduler(runs, waiting), *host_work.measure_host_work(runs, running)]
        return publish(arguments, records, {**scheduler.TARGETS, **host_work.TARGETS})

    summary = "measure the scheduler's steps and queue, and the host's work in a GPU's steps without its calls to CUDA"
    add_bench(benches, "scheduler", SCHEDULER, summary, "no queue above 1,000 and no step above 32 rows", 31, run)


def add_router(benches: Commands) -> None:
    def run(_: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
        if arguments.peers:
            return _run_beside_peers(arguments)
        if arguments.plot is not None:
            say("--plot requires --peers")
            return 2
        from bench.router import TARGETS, measure

        return publish(arguments, measure(get_runs(arguments), quick=arguments.quick), TARGETS)

    summary = "measure the router with simulated replicas, optionally against other routers"
    parser = add_bench(benches, "router", ROUTER, summary, "shorter ones", 5, run)
    parser.add_argument("--peers", type=names, default=(), metavar="NAME,...", help="litellm, sglang")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot the added time by rate, as .svg or .png")


def _run_beside_peers(arguments: argparse.Namespace) -> int:
    from bench.plots import ADDED
    from bench.router_peers.cases import FULL, QUICK
    from bench.router_peers.measure import TARGETS, measure_router_peers
    from specialist.models.demo import cache_directory

    size = QUICK if arguments.quick else FULL
    findings = measure_router_peers(arguments.peers, cache_directory(), say, size)
    return publish_findings(arguments, findings, TARGETS, ADDED)


def add_doors(benches: Commands) -> None:
    def run(_: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
        from bench.endpoints import TARGETS, measure_endpoints

        return publish(arguments, measure_endpoints(get_runs(arguments), 1.0 if arguments.quick else 10.0), TARGETS)

    add_bench(benches, "doors", DOORS, "measure TTFT over gRPC and HTTP", "shorter ones", 5, run)


def add_overview(benches: Commands) -> None:
    def run(_: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
        from bench.overview import TARGETS, measure_overview

        return publish(arguments, measure_overview(get_runs(arguments), 2.0 if arguments.quick else 20.0), TARGETS)

    add_bench(benches, "overview", OVERVIEW, "measure what an open dashboard costs the router", "shorter ones", 5, run)


def add_sessions(benches: Commands) -> None:
    def run(_: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
        from bench.sessions import ANSWER, QUICK_ANSWER, SESSION_TARGETS, measure_sessions

        length = QUICK_ANSWER if arguments.quick else ANSWER
        records = measure_sessions(arguments.model, arguments.runs or get_runs(arguments), length)
        return publish(arguments, records, SESSION_TARGETS)

    summary = "measure a growing conversation with and without prefix reuse"
    parser = add_bench(benches, "sessions", SESSIONS, summary, "shorter answers", 5, run)
    add_model(parser)
    parser.add_argument("--runs", type=parse_positive, metavar="N", help="number of conversations (default: 5)")


def add_receipts(benches: Commands) -> None:
    def run(_: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
        from bench.receipts import measure_receipts  # loads the store

        number = arguments.receipts or (_QUICK_RECEIPTS if arguments.quick else _RECEIPTS)
        return publish(arguments, measure_receipts(arguments.store, number, get_runs(arguments)))

    summary = "measure how long listing receipts takes"
    parser = add_bench(benches, "receipts", RECEIPTS, summary, f"{_QUICK_RECEIPTS:,} receipts", 15, run)
    parser.add_argument("--store", default="", metavar="URL", help="an empty database (default: a new SQLite file)")
    receipts = f"number of receipts (default: {_RECEIPTS:,})"
    parser.add_argument("--receipts", type=parse_positive, metavar="N", help=receipts)


def add_tracing(benches: Commands) -> None:
    def run(_: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
        from bench.tracing import TARGETS, measure_tracing

        return publish(arguments, measure_tracing(get_runs(arguments), arguments.model, arguments.beside), TARGETS)

    parser = add_bench(benches, "tracing", TRACING, "measure what traces cost", "no other change", 31, run)
    add_model(parser)
    parser.add_argument("--beside", type=Path, metavar="DIR", help="another checkout of this project to compare with")
