"""`octet bench tracing`."""

import argparse
from pathlib import Path

from bench.commands.common import FIGURES, QUICK_RUNS, Benches, add_common, add_model, command, publish, reporting
from bench.table import table_of_spreads

RUNS = 31
ABOUT = f"""\
Time what traces cost: the same requests through a router to one replica, each
a process of its own, without traces and with all of them recorded and sent to
a collector; with a real model, and with one that takes no time. With --beside,
another checkout of this project does the same in the same rounds.

{FIGURES}"""


def add(benches: Benches) -> None:
    parser = command(benches, "tracing", ABOUT, "what traces cost, off and on")
    add_common(parser, "nothing else", RUNS)
    add_model(parser)
    parser.add_argument("--beside", type=Path, metavar="DIR", help="another checkout of this project")
    parser.set_defaults(run=reporting(_run_tracing))


def _run_tracing(arguments: argparse.Namespace) -> int:
    from bench.tracing import TARGETS, measure_tracing  # loads gRPC and an event loop

    runs = QUICK_RUNS if arguments.quick else RUNS
    records = measure_tracing(runs, arguments.model, arguments.beside)
    publish(arguments, records, table_of_spreads(records, TARGETS))
    return 0
