"""`octet bench receipts`."""

import argparse

from bench.commands.common import FIGURES, QUICK_RUNS, Benches, add_common, command, count, publish, reporting
from bench.table import table_of_spreads

RUNS = 15
RECEIPTS, QUICK_RECEIPTS = 100_000, 2_000
ABOUT = f"""\
Time what it takes to list receipts among very many: the newest, those of a
rare specialist, those of one tenant that failed, and none at all; and how long
the event loop did not turn meanwhile. In a new SQLite file, or in an empty
database of your own.

{FIGURES}"""


def add(benches: Benches) -> None:
    parser = command(benches, "receipts", ABOUT, "listing receipts among very many")
    add_common(parser, f"{QUICK_RECEIPTS:,} receipts", RUNS)
    parser.add_argument("--store", default="", metavar="URL", help="an empty database (default: a new SQLite file)")
    parser.add_argument("--receipts", type=count, metavar="N", help=f"how many there are (default: {RECEIPTS:,})")
    parser.set_defaults(run=reporting(_run_receipts))


def _run_receipts(arguments: argparse.Namespace) -> int:
    from bench.receipts import measure_receipts  # loads the store

    runs, usual = (QUICK_RUNS, QUICK_RECEIPTS) if arguments.quick else (RUNS, RECEIPTS)
    records = measure_receipts(arguments.store, arguments.receipts or usual, runs)
    publish(arguments, records, table_of_spreads(records, {}))
    return 0
