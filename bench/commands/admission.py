"""`octet bench admission`."""

import argparse
from pathlib import Path

from bench.commands.common import QUICK_RUNS, Benches, add_bench, add_words, publish
from bench.timing import table_by_metric, table_of_spreads
from octet.cli.arguments import parse_positive
from octet.cli.simulate import parse_share

RUNS = 7
LIVE_RUNS = 2
FIRST_SEED = 101
_MOST_LOAD = 1000
ABOUT = """\
Send a replica more than it can do, at multiples of its capacity, with mixed
priorities, deadlines and lengths, and show which requests are answered in time
or refused, and whether forecasts and retry-after were right. Capacity is
measured first, with the same requests. Callers do not wait for each other.

On simulated time, on the same arrivals: "octet"; "fcfs", a queue of 256, first
come, first served, without deadlines; "fcfs tuned", the same with the length
that answers most in time, chosen afterwards; and "priority", a queue of 256 by
priority. Callers hang up at their deadlines. With --live, a replica process
behind a socket in real time; with --router as well, through a router before it.
Where this process may run before all others, as root may, refusals in periods
in which the machine was much slower, or stood still, are shown separately.
"""


def add(benches: Benches) -> None:
    summary = "a replica under overload, beside first come, first served"
    parser = add_bench(benches, "admission", ABOUT, summary, "shorter ones", RUNS, _run_admission)
    parser.add_argument("--live", action="store_true", help="a replica process in real time, not a simulation")
    parser.add_argument("--router", action="store_true", help="with --live: through a router")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="arrivals and lengths of an Azure LLM trace (CSV)")
    usual, loads = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0), "multiples of the capacity (default: 0.5,1,2,3,5,10)"
    parser.add_argument("--loads", type=_loads, default=usual, metavar="X,...", help=loads)
    seconds = "of each load, with --trace of the highest (default: 60, with --live 20)"
    parser.add_argument("--seconds", type=parse_positive, metavar="S", help=seconds)
    runs = f"of each load (default: {RUNS}, with --live {LIVE_RUNS})"
    parser.add_argument("--runs", type=parse_positive, metavar="N", help=runs)
    seed = f"of the runs, each of which has the next (default: {FIRST_SEED}; rules were chosen with seeds below 100)"
    parser.add_argument("--first-seed", type=parse_positive, default=FIRST_SEED, metavar="N", help=seed)
    early = "answers that end before their limit (default: 0)"
    parser.add_argument("--early", type=parse_share, default=0.0, metavar="SHARE", help=early)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw goodput by load, as .svg or .png")


def _loads(text: str) -> tuple[float, ...]:
    try:
        loads = tuple(sorted({float(load) for load in text.split(",")}))
    except ValueError:
        loads = ()
    if not loads or not all(0 < load <= _MOST_LOAD for load in loads):
        raise argparse.ArgumentTypeError(f"loads are numbers above 0, at most {_MOST_LOAD}, as in 1,10, got {text!r}")
    return loads


def _run_admission(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from bench.admission.load import LENGTHS, QUICK_LENGTHS
    from bench.admission.measure import AdmissionOptions, measure_admission
    from bench.admission.report import plot_goodput, targets

    if arguments.router and not arguments.live:
        parser.error("--router needs --live")
    usual_runs, usual_seconds = (LIVE_RUNS, 20) if arguments.live else (RUNS, 60)
    if arguments.quick:
        usual_runs, usual_seconds = QUICK_RUNS, (4 if arguments.live else 40)
    findings = measure_admission(
        AdmissionOptions(
            arguments.loads,
            arguments.seconds or usual_seconds,
            arguments.runs or usual_runs,
            arguments.trace,
            arguments.early,
            QUICK_LENGTHS if arguments.quick else LENGTHS,
            arguments.live,
            arguments.router,
            arguments.first_seed,
        )
    )
    if arguments.plot is not None:
        plot_goodput(arguments.plot, findings.loads)
    add_words(arguments, f"{table_by_metric(findings.classes)}\n")
    capacity = f"capacity: {findings.capacity:.2f} s of lone work a second, with the same requests all there at once"
    table = table_of_spreads(findings.loads, targets(arguments.loads))
    publish(arguments, [*findings.classes, *findings.loads], table, [capacity])
    return 0
