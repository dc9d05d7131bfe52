"""`octet bench`: the cost of Octet on this computer."""

from collections.abc import Callable
from typing import Any

from bench.commands import admission, engine, machinery, serve
from bench.commands.common import FIGURES, BenchParser
from octet.cli.arguments import Commands, add_parser

_BENCH = f"""\
Measure what Octet costs on this computer: its own machinery without a model,
and its engine compared with other engines on the same model.

{FIGURES}"""


def add_bench_command(commands: Commands) -> None:
    bench = add_parser(commands, "bench", "measure Octet and compare it with other systems", description=_BENCH)
    benches = bench.add_subparsers(dest="bench", metavar="BENCH", required=True, parser_class=BenchParser)
    adds: tuple[Callable[[Any], None], ...] = (
        *(machinery.add_kv, machinery.add_scheduler, machinery.add_router, machinery.add_doors, machinery.add_overview),
        *(admission.add, admission.add_forecast, machinery.add_sessions, serve.add),
        *(machinery.add_receipts, machinery.add_tracing, engine.add),
    )
    for add in adds:
        add(benches)
