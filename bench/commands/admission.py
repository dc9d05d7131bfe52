"""`octet bench admission` and `octet bench forecast`."""

import argparse
from pathlib import Path

from bench.commands.common import QUICK_RUNS, add_bench, add_model, add_words, get_runs, parse_numbers, publish, say
from bench.timing import table_by_metric, table_of_spreads
from octet.cli.arguments import Commands, parse_positive, parse_share

RUNS = 7
LIVE_RUNS = 2
FIRST_SEED = 101
LOADS = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
_parse_loads = parse_numbers(1000, "loads must be numbers above 0 and at most 1000 (such as 1,10)")
ABOUT = """\
Overload a replica at multiples of its capacity, with mixed priorities,
deadlines and lengths. Shows which requests are answered in time or refused,
and how accurate forecasts and retry-after are. Capacity is measured first,
with the same requests. Callers do not wait for each other.

In simulated time, with the same arrivals, the systems are "octet"; "fcfs", a
first-come, first-served queue of 256 without deadlines; "fcfs tuned", the same
with the queue length that answers most requests in time, chosen afterwards; and
"priority", a queue of 256 ordered by priority. Callers disconnect at their
deadlines. --live uses a replica process behind a socket in real time; --router
adds a router in front of it. If this process may raise its own priority, as
root may, refusals while the machine was slow or stalled are shown separately.
"""


def add(benches: Commands) -> None:
    summary = "compare admission control with first come, first served under overload"
    parser = add_bench(benches, "admission", ABOUT, summary, "shorter ones", RUNS, _run_admission)
    parser.add_argument("--live", action="store_true", help="a replica process in real time, not a simulation")
    parser.add_argument("--router", action="store_true", help="with --live: send requests through a router")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="arrivals and lengths from an Azure LLM trace (CSV)")
    loads = "multiples of the capacity (default: 0.5,1,2,3,5,10)"
    parser.add_argument("--loads", type=_parse_loads, default=LOADS, metavar="X,...", help=loads)
    seconds = "duration of each load, with --trace of the highest (default: 60, with --live 20)"
    parser.add_argument("--seconds", type=parse_positive, metavar="S", help=seconds)
    runs = f"runs of each load (default: {RUNS}, with --live {LIVE_RUNS})"
    parser.add_argument("--runs", type=parse_positive, metavar="N", help=runs)
    seed = f"seed of the first run, then counted up (default: {FIRST_SEED}; rules were tuned with seeds below 100)"
    parser.add_argument("--first-seed", type=parse_positive, default=FIRST_SEED, metavar="N", help=seed)
    early = "share of answers that end before their limit (default: 0)"
    parser.add_argument("--early", type=parse_share, default=0.0, metavar="SHARE", help=early)
    returns = "what refused callers gain by coming back, with tickets and without, instead of comparing systems"
    parser.add_argument("--returns", action="store_true", help=returns)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot goodput by load, as .svg or .png")


def _run_admission(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from bench.admission.live import play_live
    from bench.admission.load import LENGTHS, QUICK_LENGTHS, make_plan
    from bench.admission.report import class_records, load_records, targets
    from bench.admission.simulated import simulate
    from bench.plots import GOODPUT, plot_views

    if arguments.router and not arguments.live:
        parser.error("--router requires --live")
    if arguments.returns and (arguments.live or arguments.plot is not None):
        parser.error("--returns cannot be combined with --live or --plot")
    usual_runs, usual_seconds = (LIVE_RUNS, 20) if arguments.live else (RUNS, 60)
    if arguments.quick:
        usual_runs, usual_seconds = QUICK_RUNS, (4 if arguments.live else 40)
    plan = make_plan(
        tuple(sorted(arguments.loads)),
        arguments.seconds or usual_seconds,
        range(arguments.first_seed, arguments.first_seed + (arguments.runs or usual_runs)),
        trace=arguments.trace,
        early=arguments.early,
        lengths=QUICK_LENGTHS if arguments.quick else LENGTHS,
        live=arguments.live,
    )
    if arguments.returns:
        from bench.admission.return_report import return_records, return_targets
        from bench.admission.returns import simulate_returns

        rate, comebacks = simulate_returns(plan)
        note = f"capacity: {rate:.2f} s of lone work per second"
        return publish(arguments, list(return_records(comebacks)), return_targets(plan.loads), [note])
    capacity, runs = play_live(plan, routed=arguments.router) if arguments.live else simulate(plan)
    classes, loads = list(class_records(runs, plan.mix.priorities)), list(load_records(runs))
    if arguments.plot is not None:
        plot_views(arguments.plot, [GOODPUT], loads)
    add_words(arguments, f"{table_by_metric(classes)}\n")
    note = f"capacity: {capacity:.2f} s of lone work per second, with all of the requests arriving at once"
    table = table_of_spreads(loads, targets(plan.loads))
    return publish(arguments, [*classes, *loads], notes=[note], table=table)


FORECAST_LOADS = (0.5, 0.7)
_parse_shares = parse_numbers(1, "loads must be numbers above 0 and at most 1 (such as 0.5,0.7)")
FORECAST = """\
Serve a real model at a steady part of its capacity, with real prompts of mixed
lengths, and compare the forecast of each admitted request with the real time:
of the first token, of the end of answers of known length, and of the end that
was stated for any answer. An error is the difference as a share of the real
time. Figures marked "published" are the replica's own, for its last 256
answers, without the time that its caller needs. With --beside, another
checkout of this project takes turns.
"""


def add_forecast(benches: Commands) -> None:
    summary = "measure how accurate a replica's forecasts are in steady load"
    parser = add_bench(benches, "forecast", FORECAST, summary, "shorter ones", 3, _run_forecast)
    add_model(parser)
    loads = "parts of the capacity (default: 0.5,0.7)"
    parser.add_argument("--loads", type=_parse_shares, default=FORECAST_LOADS, metavar="X,...", help=loads)
    parser.add_argument("--seconds", type=parse_positive, metavar="S", help="duration of each load (default: 60)")
    parser.add_argument("--runs", type=parse_positive, metavar="N", help="runs of each load (default: 3)")
    parser.add_argument("--beside", type=Path, metavar="DIR", help="another checkout of this project to compare with")


def _run_forecast(_: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from bench.forecasts import measure_forecasts, targets

    loads, seconds = tuple(sorted(arguments.loads)), arguments.seconds or (10 if arguments.quick else 60)
    runs = arguments.runs or get_runs(arguments)
    records, note = measure_forecasts(arguments.model, loads, seconds, runs, arguments.beside, say)
    return publish(arguments, records, targets(loads), [note])
