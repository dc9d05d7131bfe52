"""`octet bench overview`."""

import argparse

from bench.commands.common import FIGURES, QUICK_RUNS, Benches, add_common, command, publish, reporting
from bench.table import table_of_spreads

RUNS = 5
ABOUT = f"""\
Time what it costs a router that people look at it: its CPU at a steady rate of
requests for eight specialists of two simulated replicas each, with nobody
looking and with one dashboard open, and how soon after a change a watcher has
it.

{FIGURES}"""


def add(benches: Benches) -> None:
    parser = command(benches, "overview", ABOUT, "what it costs the router that people look at it")
    add_common(parser, "shorter ones", RUNS)
    parser.set_defaults(run=reporting(_run_overview))


def _run_overview(arguments: argparse.Namespace) -> int:
    from bench.overview import TARGETS, measure_overview

    records = measure_overview(QUICK_RUNS, 2.0) if arguments.quick else measure_overview(RUNS, 20.0)
    publish(arguments, records, table_of_spreads(records, TARGETS))
    return 0
