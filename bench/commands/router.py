"""`octet bench router`."""

import argparse
from pathlib import Path

from bench.commands.common import FIGURES, QUICK_RUNS, Benches, add_common, command, names, publish, reporting, say
from bench.table import table_of_spreads

RUNS = 5
ABOUT = f"""\
Time the router in front of simulated replicas, two for each of the eight
specialists: what it adds to the first token at a steady rate, beside the same
calls straight to a replica ("limit"); how many tokens one core relays; its
memory; and what a decision costs by rule, from the cache and with the
classifier. The router has a core to itself, everybody else shares the others.

With --peers it is measured beside other routers instead, each in front of
backends that cost next to nothing and speak its language at the same pace:
litellm (LiteLLM's proxy) and sglang (sglang-router). What each adds to the
first token, one call after the other and at 10 to 100 requests a second, for
prompts of up to 220 KB, with a client that acknowledges at once and with a
stock one; streams, tokens and whole answers a second, and a second of its
CPU; its memory. Each is installed into an environment of its own below
$OCTET_CACHE (default: ~/.cache/octet). Whoever is not measured is stopped.
A peer that cannot be installed, dies or hangs is told in a line and left out;
the exit code is then 1. The 99th percentile is told from 200 requests on; its
spread is by drawing again from all of them.

{FIGURES}"""


def add(benches: Benches) -> None:
    parser = command(benches, "router", ABOUT, "the router in front of simulated replicas, beside its peers on request")
    add_common(parser, "shorter ones", RUNS)
    parser.add_argument("--peers", type=names, default=(), metavar="NAME,...", help="litellm, sglang")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the added time by rate: .svg or .png")
    parser.set_defaults(run=reporting(_run_router))


def _run_router(arguments: argparse.Namespace) -> int:
    if arguments.peers:
        return _run_beside_peers(arguments)
    if arguments.plot is not None:
        say("--plot needs --peers")
        return 2
    from bench.router import TARGETS, measure  # loads gRPC and an event loop

    records = measure(QUICK_RUNS if arguments.quick else RUNS, quick=arguments.quick)
    publish(arguments, records, table_of_spreads(records, TARGETS))
    return 0


def _run_beside_peers(arguments: argparse.Namespace) -> int:
    from bench.router_peers.case import FULL, QUICK  # these load gRPC and an event loop
    from bench.router_peers.drawing import plot_added
    from bench.router_peers.measure import measure_router_peers
    from bench.router_peers.report import TARGETS
    from specialist.models.demo import cache_directory

    size = QUICK if arguments.quick else FULL
    outcome = measure_router_peers(arguments.peers, cache_directory(), say, size)
    publish(arguments, outcome.records, table_of_spreads(outcome.records, TARGETS), outcome.notes)
    if arguments.plot is not None:
        plot_added(arguments.plot, outcome.records)
    return 1 if outcome.failures else 0
