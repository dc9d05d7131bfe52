"""`octet bench overload`."""

import argparse
from pathlib import Path

from bench.commands.common import (
    FIGURES,
    QUICK_RUNS,
    Benches,
    add_common,
    add_words,
    command,
    count,
    publish,
    reporting,
)
from bench.table import table_by_metric, table_of_spreads

RUNS = 3
LIVE_RUNS = 2
_MOST_LOAD = 1000
ABOUT = f"""\
Ask more of a replica than it can do, at multiples of its capacity, with mixed
priorities, deadlines and lengths, and show who is answered in time, who is
refused and why, and whether what was said came true: forecasts, and when to try
again. Capacity is measured first, with the same requests. Callers do not wait
for each other.

On simulated time, with admission ("octet") beside the bounded queue alone
("queue"), on the same loads. With --live, a replica process behind a socket in
real time; with --router as well, through a router before it.

{FIGURES}"""


def add(benches: Benches) -> None:
    parser = command(benches, "overload", ABOUT, "a replica that is asked for more than it can do")
    add_common(parser, "shorter ones", RUNS)
    parser.add_argument("--live", action="store_true", help="a replica process in real time, not a simulation")
    parser.add_argument("--router", action="store_true", help="with --live: through a router")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="arrivals and lengths of an Azure LLM trace (CSV)")
    parser.add_argument(
        "--loads",
        type=_loads,
        default=(0.5, 1.0, 2.0, 5.0, 10.0),
        metavar="X,...",
        help="multiples of the capacity (default: 0.5,1,2,5,10)",
    )
    parser.add_argument("--seconds", type=count, metavar="S", help="of each load (default: 60, with --live 20)")
    parser.add_argument(
        "--runs", type=count, metavar="N", help=f"of each load (default: {RUNS}, with --live {LIVE_RUNS})"
    )
    parser.add_argument(
        "--early", type=_share, default=0.0, metavar="SHARE", help="answers that end before their limit (default: 0)"
    )
    parser.set_defaults(run=reporting(lambda arguments: _run_overload(parser, arguments)))


def _loads(text: str) -> tuple[float, ...]:
    try:
        loads = tuple(sorted({float(load) for load in text.split(",")}))
    except ValueError:
        loads = ()
    if not loads or not all(0 < load <= _MOST_LOAD for load in loads):
        raise argparse.ArgumentTypeError(f"loads are numbers above 0, at most {_MOST_LOAD}, as in 1,10, got {text!r}")
    return loads


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"a share is a number from 0 to 1, got {text!r}")
    return share


def _run_overload(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from bench.overload.measure import Options, measure_overload
    from bench.overload.report import targets

    if arguments.router and not arguments.live:
        parser.error("--router needs --live")
    usual_runs, usual_seconds = (LIVE_RUNS, 20) if arguments.live else (RUNS, 60)
    if arguments.quick:
        usual_runs, usual_seconds = QUICK_RUNS, (4 if arguments.live else 40)
    findings = measure_overload(
        Options(
            arguments.loads,
            arguments.seconds or usual_seconds,
            arguments.runs or usual_runs,
            arguments.trace,
            arguments.early,
            arguments.live,
            arguments.router,
        )
    )
    add_words(arguments, f"{table_by_metric(findings.classes)}\n")
    capacity = f"capacity: {findings.capacity:.2f} s of lone work a second, with the same requests all there at once"
    table = table_of_spreads(findings.loads, targets(arguments.loads))
    publish(arguments, [*findings.classes, *findings.loads], table, [capacity])
    return 0
