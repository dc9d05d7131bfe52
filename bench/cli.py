"""`octet bench`: what Octet costs on this computer."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import hit_rate, kv, scheduler
from bench.plot import PlotUnavailable, plot_hit_rate
from bench.record import Record, lines_of, write_records
from bench.router_site import SiteFailed
from bench.table import table_by_metric, table_of_spreads
from bench.trace import TraceError, read_trace
from octet.text_io import file_words
from specialist.models.errors import ModelRefused

RUNS = 31
ENGINE_RUNS = 9
ROUTER_RUNS = 5
OVERLOAD_RUNS = 3
LIVE_RUNS = 2
SESSION_RUNS = 5
DOOR_RUNS = 5
OVERVIEW_RUNS = 5
QUICK_RUNS = 2
_MOST_LOAD = 1000
_STANDARD_OUTPUT = Path("-")

_FIGURES = """\
Every figure is the median of its runs; p10 and p90, in JSON low and high, are
the 10th and the 90th percentile by nearest rank. What is compared runs in
turns, in an order that changes from round to round; a ratio is taken round by
round. The system is "octet", a peer, or "limit" for a bound that nothing can
beat.
"""
_BENCH = f"""\
Measure what Octet costs on this computer: its own machinery without a model,
and its engine beside other engines on the same model.

{_FIGURES}"""
_KV = f"""\
Time the block pool: allocating and freeing with and without eviction, sharing
a cached prefix, and hashing and matching a prompt, beside bare sha256 over the
same bytes ("limit").

With --trace, replay a recorded trace instead, one request after the other, and
show what share of all its blocks pools of different sizes find, beside an
infinite cache ("limit"). These are counts: one run, no spread.

{_FIGURES}"""
_SCHEDULER = f"""\
Time the scheduler alone, without an engine. A step is what a replica does
between two forward passes: commit, take the events, assemble. It is timed with
many running or waiting, with a blocked queue, chunked prompts, speculation and
preemption; so are a submission and a cancellation.

{_FIGURES}"""
_ENGINE = f"""\
Time the engine on a real model: decoding 1, 4, 16 and 32 sequences at once,
prefill, time to the first token (TTFT) and between tokens (ITL), and a warm
prefix against a cold one; beside it the bare linear layers and the weights'
bytes over the read bandwidth ("limit").

With --peers, other engines do the same in the same rounds: hf (transformers),
llamacpp (llama-cpp-python), vllm (vLLM's CPU build). Each is installed into an
environment of its own below $OCTET_CACHE (default: ~/.cache/octet), tried with
different settings, and measured with the fastest. Whoever waits is stopped.
One that cannot be installed, dies or hangs is told in a line and left out; the
exit code is then 1.

{_FIGURES}"""

_SESSIONS = f"""\
Talk for 20 turns with a replica of a real model through a router, and time
how long turns wait for their first token (TTFT), with reuse of what was
computed before and without.

{_FIGURES}"""
_ROUTER = f"""\
Time the router in front of simulated replicas, two for each of the eight
specialists: what it adds to the first token at a steady rate, beside the same
calls straight to a replica ("limit"); how many tokens one core relays; its
memory; and what a decision costs by rule, from the cache and with the
classifier. The router has a core to itself, everybody else shares the others.

{_FIGURES}"""

_DOORS = f"""\
Time the first token through both front doors of a router, gRPC and HTTP, at a
steady rate before simulated replicas, with as many requests for a named
specialist: at rest, and while 500 connections are only held by callers that
never end their request or never read their answer.

{_FIGURES}"""

_OVERVIEW = f"""\
Time what it costs a router that people look at it: its CPU at a steady rate of
requests for eight specialists of two simulated replicas each, with nobody
looking and with one dashboard open, and how soon after a change a watcher has
it.

{_FIGURES}"""

_OVERLOAD = f"""\
Ask more of a replica than it can do, at multiples of its capacity, with mixed
priorities, deadlines and lengths, and show who is answered in time, who is
refused and why, and whether what was said came true: forecasts, and when to try
again. Capacity is measured first, with the same requests. Callers do not wait
for each other.

On simulated time, with admission ("octet") beside the bounded queue alone
("queue"), on the same loads. With --live, a replica process behind a socket in
real time; with --router as well, through a router before it.

{_FIGURES}"""


def add_bench_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    bench = _add(commands, "bench", _BENCH, "measure what Octet costs, beside its peers")
    benches = bench.add_subparsers(dest="bench", metavar="BENCH", required=True)
    _add_kv(_add(benches, "kv", _KV, "the block pool: its operations, and hit rates on a trace"))
    _add_scheduler(_add(benches, "scheduler", _SCHEDULER, "the scheduler: its steps and its queue"))
    _add_router(_add(benches, "router", _ROUTER, "the router in front of simulated replicas"))
    _add_doors(_add(benches, "doors", _DOORS, "gRPC and HTTP, also under connections that are only held"))
    _add_overview(_add(benches, "overview", _OVERVIEW, "what it costs the router that people look at it"))
    _add_overload(_add(benches, "overload", _OVERLOAD, "a replica that is asked for more than it can do"))
    _add_sessions(_add(benches, "sessions", _SESSIONS, "a conversation as it grows, with and without reuse"))
    _add_engine(_add(benches, "engine", _ENGINE, "the engine on a real model, beside its peers"))


def _add(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, description: str, summary: str
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name, description=description, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def _add_kv(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, "no pool above 10,000 blocks (with --trace, only the largest pool)")
    trace = parser.add_argument_group("replaying a trace")
    trace.add_argument("--trace", type=Path, metavar="FILE", help="a trace in the Mooncake format (JSON lines)")
    trace.add_argument(
        "--pool-sizes",
        type=_pool_size,
        nargs="+",
        metavar="N",
        help=f"blocks of 512 tokens (default: {' '.join(map(str, hit_rate.POOL_SIZES))})",
    )
    trace.add_argument("--plot", type=Path, metavar="FILE", help="draw the hit rates as .svg or .png")
    parser.set_defaults(run=_reporting(lambda arguments: _run_kv(parser, arguments)))


def _add_scheduler(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, "no queue above 1,000")
    parser.set_defaults(run=_reporting(_run_scheduler))


def _add_router(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, "shorter ones", ROUTER_RUNS)
    parser.set_defaults(run=_reporting(_run_router))


def _add_doors(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, "shorter ones", DOOR_RUNS)
    parser.set_defaults(run=_reporting(_run_doors))


def _add_overview(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, "shorter ones", OVERVIEW_RUNS)
    parser.set_defaults(run=_reporting(_run_overview))


def _add_sessions(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, "shorter answers", SESSION_RUNS)
    _add_model(parser)
    parser.add_argument("--runs", type=_count, metavar="N", help=f"conversations (default: {SESSION_RUNS})")
    parser.set_defaults(run=_reporting(_run_sessions))


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", type=Path, metavar="PATH", help="GGUF file or Hugging Face directory (default: the demo model)"
    )


def _add_engine(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, "small prompts and answers", ENGINE_RUNS)
    _add_model(parser)
    parser.add_argument("--peers", type=_names, default=(), metavar="NAME,...", help="hf, llamacpp, vllm")
    parser.add_argument("--served", action="store_true", help="measure Octet over gRPC as well")
    parser.add_argument("--runs", type=_count, metavar="N", help=f"rounds that count (default: {ENGINE_RUNS})")
    parser.add_argument("--timeout", type=_count, default=600, metavar="S", help="seconds an engine may take to answer")
    parser.add_argument("--calibrate", type=Path, metavar="FILE", help="write what steps cost, for the simulation")
    parser.set_defaults(run=_reporting(_run_engine))


def _add_overload(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, "shorter ones", OVERLOAD_RUNS)
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
    parser.add_argument("--seconds", type=_count, metavar="S", help="of each load (default: 60, with --live 20)")
    parser.add_argument(
        "--runs", type=_count, metavar="N", help=f"of each load (default: {OVERLOAD_RUNS}, with --live {LIVE_RUNS})"
    )
    parser.add_argument(
        "--early", type=_share, default=0.0, metavar="SHARE", help="answers that end before their limit (default: 0)"
    )
    parser.set_defaults(run=_reporting(lambda arguments: _run_overload(parser, arguments)))


def _add_common(parser: argparse.ArgumentParser, smaller: str, runs: int = RUNS) -> None:
    parser.add_argument(
        "--json",
        type=Path,
        nargs="?",
        const=_STANDARD_OUTPUT,
        metavar="FILE",
        help="also write the figures, one JSON record a line; without a file: to standard output, and no table",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{QUICK_RUNS} runs instead of {runs}, and {smaller}: to see that it works, not how fast",
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in text.split(",") if name))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1, got {text!r}")
    return int(text)


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


def _pool_size(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a pool size is a number of blocks, at least 1, got {text!r}")
    return int(text)


def _reporting(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """What a user can put right is told in one line."""

    def run_and_report(arguments: argparse.Namespace) -> int:
        try:
            return run(arguments)
        except BrokenPipeError:
            raise
        except OSError as error:
            _say(file_words(error))
            return 2
        except (TraceError, PlotUnavailable, ModelRefused, SiteFailed) as error:
            _say(str(error))
            return 2

    return run_and_report


def _run_kv(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    if arguments.trace is not None:
        return _run_trace(arguments)
    if arguments.plot is not None or arguments.pool_sizes is not None:
        parser.error("--plot and --pool-sizes need --trace")
    measure, sizes = kv.measure_kv, kv.POOL_SIZES
    records = measure(QUICK_RUNS, sizes[:2]) if arguments.quick else measure(RUNS)
    _publish(arguments, records, table_of_spreads(records, kv.kv_targets()))
    return 0


def _run_trace(arguments: argparse.Namespace) -> int:
    requests = read_trace(arguments.trace)
    infinite = hit_rate.replay_infinite(requests)
    replays = hit_rate.replay_pools(requests, _pool_sizes(arguments))
    records = hit_rate.hit_rate_records(infinite, replays)
    _publish(arguments, records, table_by_metric(records))
    if arguments.plot is not None:
        plot_hit_rate(arguments.plot, infinite, replays)
    return 0


def _pool_sizes(arguments: argparse.Namespace) -> Sequence[int]:
    if arguments.pool_sizes is not None:
        return sorted(set(arguments.pool_sizes))
    return hit_rate.POOL_SIZES[-1:] if arguments.quick else hit_rate.POOL_SIZES


def _run_scheduler(arguments: argparse.Namespace) -> int:
    measure, sizes = scheduler.measure_scheduler, scheduler.NUMS_WAITING
    records = measure(QUICK_RUNS, sizes[:2]) if arguments.quick else measure(RUNS)
    _publish(arguments, records, table_of_spreads(records, scheduler.scheduler_targets()))
    return 0


def _run_router(arguments: argparse.Namespace) -> int:
    from bench.router import TARGETS, measure  # loads gRPC and an event loop

    records = measure(QUICK_RUNS if arguments.quick else ROUTER_RUNS, quick=arguments.quick)
    _publish(arguments, records, table_of_spreads(records, TARGETS))
    return 0


def _run_doors(arguments: argparse.Namespace) -> int:
    from bench.doors import TARGETS, measure_doors

    records = measure_doors(QUICK_RUNS, 1.0) if arguments.quick else measure_doors(DOOR_RUNS, 10.0)
    _publish(arguments, records, table_of_spreads(records, TARGETS))
    return 0


def _run_overview(arguments: argparse.Namespace) -> int:
    from bench.overview import TARGETS, measure_overview

    records = measure_overview(QUICK_RUNS, 2.0) if arguments.quick else measure_overview(OVERVIEW_RUNS, 20.0)
    _publish(arguments, records, table_of_spreads(records, TARGETS))
    return 0


def _run_sessions(arguments: argparse.Namespace) -> int:
    from bench.sessions import ANSWER, QUICK_ANSWER, SESSION_TARGETS, measure_sessions

    runs = arguments.runs or (QUICK_RUNS if arguments.quick else SESSION_RUNS)
    records = measure_sessions(arguments.model, runs, QUICK_ANSWER if arguments.quick else ANSWER)
    _publish(arguments, records, table_of_spreads(records, SESSION_TARGETS))
    return 0


def _run_overload(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from bench.overload.measure import Options, measure_overload
    from bench.overload.report import targets

    if arguments.router and not arguments.live:
        parser.error("--router needs --live")
    usual_runs, usual_seconds = (LIVE_RUNS, 20) if arguments.live else (OVERLOAD_RUNS, 60)
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
    _add_words(arguments, f"{table_by_metric(findings.classes)}\n")
    _publish(
        arguments, [*findings.classes, *findings.loads], table_of_spreads(findings.loads, targets(arguments.loads))
    )
    asked_at_once = "with the same requests all there at once"
    _add_words(arguments, f"\ncapacity: {findings.capacity:.2f} s of lone work a second, {asked_at_once}")
    return 0


def _run_engine(arguments: argparse.Namespace) -> int:
    from bench.engine import Options, engine_targets, measure_engine  # loads torch: other benches do without
    from bench.engine_model import open_model
    from specialist.models.demo import cache_directory, demo_model
    from specialist.models.progress import bar

    cache = cache_directory()
    model = arguments.model or demo_model(cache, bar())
    runs = arguments.runs or (QUICK_RUNS if arguments.quick else ENGINE_RUNS)
    options = Options(
        arguments.peers,
        runs,
        cache,
        arguments.timeout,
        quick=arguments.quick,
        calibrate=arguments.calibrate,
        served=arguments.served,
    )
    outcome = measure_engine(open_model(model, cache), options, _say)
    _publish(arguments, outcome.records, table_of_spreads(outcome.records, engine_targets()))
    _add_words(arguments, "\n".join(["", *outcome.notes]))
    return 1 if outcome.failures else 0


def _say(line: str) -> None:
    print(f"octet bench: {line}", file=sys.stderr, flush=True)


def _publish(arguments: argparse.Namespace, records: Sequence[Record], table: str) -> None:
    if arguments.json == _STANDARD_OUTPUT:
        print(lines_of(records), end="")
        return
    print(table)
    if arguments.json is not None:
        write_records(arguments.json, records)


def _add_words(arguments: argparse.Namespace, words: str) -> None:
    """What is for people only."""
    print(words, file=sys.stderr if arguments.json == _STANDARD_OUTPUT else sys.stdout)
