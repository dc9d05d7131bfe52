"""`octet bench sessions`."""

import argparse

from bench.commands.common import (
    FIGURES,
    QUICK_RUNS,
    Benches,
    add_common,
    add_model,
    command,
    count,
    publish,
    reporting,
)
from bench.table import table_of_spreads

RUNS = 5
ABOUT = f"""\
Talk for 20 turns with a replica of a real model through a router, and time
how long turns wait for their first token (TTFT), with reuse of what was
computed before and without.

{FIGURES}"""


def add(benches: Benches) -> None:
    parser = command(benches, "sessions", ABOUT, "a conversation as it grows, with and without reuse")
    add_common(parser, "shorter answers", RUNS)
    add_model(parser)
    parser.add_argument("--runs", type=count, metavar="N", help=f"conversations (default: {RUNS})")
    parser.set_defaults(run=reporting(_run_sessions))


def _run_sessions(arguments: argparse.Namespace) -> int:
    from bench.sessions import ANSWER, QUICK_ANSWER, SESSION_TARGETS, measure_sessions

    runs = arguments.runs or (QUICK_RUNS if arguments.quick else RUNS)
    records = measure_sessions(arguments.model, runs, QUICK_ANSWER if arguments.quick else ANSWER)
    publish(arguments, records, table_of_spreads(records, SESSION_TARGETS))
    return 0
