"""`octet bench doors`."""

import argparse

from bench.commands.common import FIGURES, QUICK_RUNS, Benches, add_common, command, publish, reporting
from bench.table import table_of_spreads

RUNS = 5
ABOUT = f"""\
Time the first token through both front doors of a router, gRPC and HTTP, at a
steady rate before simulated replicas, with as many requests for a named
specialist: at rest, and while 500 connections are only held by callers that
never end their request or never read their answer.

{FIGURES}"""


def add(benches: Benches) -> None:
    parser = command(benches, "doors", ABOUT, "gRPC and HTTP, also under connections that are only held")
    add_common(parser, "shorter ones", RUNS)
    parser.set_defaults(run=reporting(_run_doors))


def _run_doors(arguments: argparse.Namespace) -> int:
    from bench.doors import TARGETS, measure_doors

    records = measure_doors(QUICK_RUNS, 1.0) if arguments.quick else measure_doors(RUNS, 10.0)
    publish(arguments, records, table_of_spreads(records, TARGETS))
    return 0
