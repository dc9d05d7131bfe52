"""`octet bench`: what Octet costs on this computer."""

import argparse

from bench.commands import (
    admission,
    doors,
    engine,
    kv,
    overview,
    receipts,
    router,
    scheduler,
    serve,
    sessions,
    tracing,
)
from bench.commands.common import FIGURES, Benches, BenchParser

_BENCH = f"""\
Measure what Octet costs on this computer: its own machinery without a model,
and its engine beside other engines on the same model.

{FIGURES}"""


def add_bench_command(commands: Benches) -> None:
    bench = commands.add_parser(
        "bench",
        description=_BENCH,
        help="measure what Octet costs, beside its peers",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    benches = bench.add_subparsers(dest="bench", metavar="BENCH", required=True, parser_class=BenchParser)
    for each in (kv, scheduler, router, doors, overview, admission, sessions, serve, receipts, tracing, engine):
        each.add(benches)
