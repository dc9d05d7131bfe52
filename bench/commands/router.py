"""`octet bench router`."""

import argparse

from bench.commands.common import FIGURES, QUICK_RUNS, Benches, add_common, command, publish, reporting
from bench.table import table_of_spreads

RUNS = 5
ABOUT = f"""\
Time the router in front of simulated replicas, two for each of the eight
specialists: what it adds to the first token at a steady rate, beside the same
calls straight to a replica ("limit"); how many tokens one core relays; its
memory; and what a decision costs by rule, from the cache and with the
classifier. The router has a core to itself, everybody else shares the others.

{FIGURES}"""


def add(benches: Benches) -> None:
    parser = command(benches, "router", ABOUT, "the router in front of simulated replicas")
    add_common(parser, "shorter ones", RUNS)
    parser.set_defaults(run=reporting(_run_router))


def _run_router(arguments: argparse.Namespace) -> int:
    from bench.router import TARGETS, measure  # loads gRPC and an event loop

    records = measure(QUICK_RUNS if arguments.quick else RUNS, quick=arguments.quick)
    publish(arguments, records, table_of_spreads(records, TARGETS))
    return 0
