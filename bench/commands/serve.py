"""`octet bench serve`."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.commands.common import QUICK_RUNS, add_bench, add_words, names, parse_numbers, publish, say
from bench.serving import workload
from bench.serving.workload import CallerClass, ServeMistake, Source
from bench.timing import table_by_metric, table_of_spreads
from octet.cli.arguments import Commands, number_type, parse_positive

if TYPE_CHECKING:
    from bench.serving.callers import BenchEndpoint
    from bench.serving.systems import OwnEnsemble

RUNS, PEER_RUNS = 3, 5
SECONDS, PEER_SECONDS, QUICK_SECONDS = 20, 12, 4
RATE = 4.0
SHARES = (0.5, 0.9, 1.5)
_parse_rate = number_type(lambda rate: 0 < rate <= 100_000, "must be above 0 and at most 100,000 per second")
_parse_shares = parse_numbers(100, "shares must be numbers above 0 and at most 100 (such as 0.5,0.9)")
PROMPT, OUTPUT = "lognormal:64:0.8", "lognormal:24:0.6"
_DOORS = ("http", "grpc")
ABOUT = """\
Put an endpoint under load end to end and show how much of the load is answered
within the deadlines of its class (goodput), with throughput, TTFT, ITL and
refusals. Without an address, the load goes to an ensemble started for it; with
--url, to any OpenAI endpoint; with several, to each in turn.

Arrivals do not wait for answers. Times are counted from when a request was
due: if the load generator itself is late, which is reported, the endpoint looks
worse, never better. A piece of a stream may be several tokens; ITL is the time
between pieces. Goodput is over the seconds of arrivals, throughput over the
time until the last answer.

A class is NAME:SHARE:PRIORITY:TTFT_MS:TOTAL_MS. Octet (a model named octet or
octet/NAME) gets the priority and deadline of a request, peers get the priority,
and other endpoints neither. Callers of every endpoint disconnect at the
deadline. Only whole answers within both deadlines count as goodput.

With --peers, another engine's own OpenAI server is measured beside the started
ensemble, with the same demo model: vllm (vLLM's CPU build, with the same
weights as floats). It is installed into its own environment below $OCTET_CACHE
(default: ~/.cache/octet), gets priorities but no deadlines, and is stopped while
Octet runs. Rates are then shares of Octet's capacity, which is measured first.
A peer that cannot be installed or started, or dies, is reported and left out;
the exit code is then 1.
"""


def add(benches: Commands) -> None:
    summary = "measure how many of an endpoint's answers meet their deadlines under load"
    smaller = "shorter ones, on simulated engines by default"
    parser = add_bench(benches, "serve", ABOUT, summary, smaller, RUNS, _run_serve)
    _add_endpoints(parser)
    _add_load(parser)
    runs = f"rounds (default: {RUNS}, with --peers {PEER_RUNS})"
    parser.add_argument("--runs", type=parse_positive, metavar="N", help=runs)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot goodput and first tokens as .svg or .png")


def _add_endpoints(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("endpoints")
    for option, place, about in (
        ("--url", "URL", "an OpenAI endpoint: http://host:port/v1"),
        ("--grpc", "HOST:PORT", "an Octet router over gRPC"),
        ("--beside", "URL", "another OpenAI endpoint, also together with the started ensemble"),
        ("--model", "NAME", "model at the addresses: one for all, or one each, in order (--url, --beside, --grpc)"),
    ):
        group.add_argument(option, action="append", default=[], metavar=place, help=about)
    group.add_argument("--key", metavar="VARIABLE", help="environment variable that holds the API key")
    group.add_argument("--engine", choices=("native", "sim"), help="engine of the ensemble: demo model or simulated")
    replicas = "replicas of the ensemble that is started (default: 1)"
    group.add_argument("--replicas", type=parse_positive, default=1, metavar="N", help=replicas)
    group.add_argument("--ensemble", type=Path, metavar="FILE", help="configuration of the ensemble that is started")
    group.add_argument("--peers", type=names, default=(), metavar="NAME,...", help="servers to compare with: vllm")
    doors = "endpoints of the started ensemble: http, grpc (default: http)"
    group.add_argument("--doors", type=names, default=("http",), metavar="DOOR,...", help=doors)


def _add_load(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument_group("load").add_argument
    about = f"requests per second (default: {RATE:g}, or as in the trace)"
    option("--rate", type=_parse_rate, metavar="R", help=about)
    about = "rates as shares of the first system's capacity (default with --peers: 0.5,0.9,1.5)"
    option("--shares", type=_parse_shares, default=(), metavar="S,...", help=about)
    about = "take arrivals and lengths from an Azure LLM trace (CSV) or a Mooncake trace (JSON lines)"
    option("--trace", type=Path, metavar="FILE", help=about)
    option("--arrivals", metavar="HOW", help="poisson (default), gamma:CV or constant")
    for name, usual in (("--prompt-tokens", PROMPT), ("--output-tokens", OUTPUT)):
        option(name, metavar="N", help=f"N, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA (default: {usual})")
    about = "limit of prompt and answer in tokens; longer ones are cut (default: 2048)"
    option("--context", type=parse_positive, default=2048, metavar="N", help=about)
    about = "repeatable; default: interactive:0.7:6:1000:10000 and batch:0.3:2:5000:30000"
    option("--class", dest="classes", action="append", default=[], metavar="CLASS", help=about)
    about = "classes as YAML: NAME: {share, priority, ttft_ms, total_ms}"
    option("--classes", dest="classes_file", type=Path, metavar="FILE", help=about)
    about = f"seconds of arrivals at each load (default: {SECONDS}, with --peers {PEER_SECONDS})"
    option("--seconds", type=parse_positive, metavar="S", help=about)
    option("--seed", type=int, default=0, metavar="N", help="seed of all random choices (default: 0)")
    about = "time after which a caller disconnects, unless its deadline is sooner (default: 120)"
    option("--give-up", type=parse_positive, default=120, metavar="S", help=about)


def _run_serve(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from bench.serving.measure import ServeOptions, measure_serve  # loads gRPC and an event loop
    from bench.serving.report import class_records, plot_serve, records, warnings

    try:
        classes = _classes(parser, arguments)
        options = ServeOptions(
            source=_source(parser, arguments),
            rate=arguments.rate,
            shares=_loads(parser, arguments),
            classes=classes,
            own=_own(parser, arguments),
            endpoints=_endpoints(parser, arguments),
            seconds=arguments.seconds or _usual(arguments, QUICK_SECONDS, SECONDS, PEER_SECONDS),
            runs=arguments.runs or _usual(arguments, QUICK_RUNS, RUNS, PEER_RUNS),
            seed=arguments.seed,
            context=arguments.context,
            key=_key(arguments.key),
            give_up=arguments.give_up,
            peers=arguments.peers,
            quick=arguments.quick,
        )
        findings = measure_serve(options, say)
    except ServeMistake as mistake:
        say(str(mistake))
        return 2
    by_class, of_all = class_records(findings.rounds, classes), records(findings.rounds)
    add_words(arguments, f"{table_by_metric(by_class)}\n")
    notes = [*findings.notes, *warnings(findings.rounds)]
    publish(arguments, [*by_class, *of_all], notes=notes, table=table_of_spreads(of_all, {}))
    if arguments.plot is not None:
        plot_serve(arguments.plot, findings.rounds, classes)
    return 1 if findings.failures else 0


def _usual(arguments: argparse.Namespace, quick: int, alone: int, beside_peers: int) -> int:
    if arguments.quick:
        return quick
    return beside_peers if arguments.peers else alone


def _loads(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> tuple[float, ...]:
    if arguments.shares and arguments.rate:
        parser.error("--rate and --shares cannot be combined")
    if arguments.shares or arguments.rate or not arguments.peers:
        return tuple(arguments.shares)
    return SHARES[:1] if arguments.quick else SHARES


def _classes(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> tuple[CallerClass, ...]:
    if arguments.classes and arguments.classes_file:
        parser.error("--class and --classes cannot be combined")
    if arguments.classes_file:
        return workload.read_classes(arguments.classes_file)
    return workload.checked([workload.parse_class(text) for text in arguments.classes]) or workload.USUAL


def _source(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Callable[[float | None], Source]:
    from simulation.traces import read_arrivals

    drawing = (arguments.arrivals, arguments.prompt_tokens, arguments.output_tokens)
    if arguments.trace is None:
        arrivals, prompt, output = drawing
        gaps = workload.parse_gaps(arrivals or "poisson")
        lengths = workload.parse_length(prompt or PROMPT), workload.parse_length(output or OUTPUT)
        return lambda rate: workload.drawn(rate or RATE, gaps, *lengths)
    if any(drawing):
        parser.error("--arrivals, --prompt-tokens and --output-tokens cannot be combined with --trace")
    traffic = read_arrivals(arguments.trace)
    return lambda rate: workload.recorded(traffic, rate)


def _own(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> "OwnEnsemble | None":
    from bench.serving.systems import SERVER_PEERS, Engine, OwnEnsemble

    if unknown := [name for name in arguments.peers if name not in SERVER_PEERS]:
        parser.error(f"--peers {','.join(unknown)}: unknown server (known: {', '.join(SERVER_PEERS)})")
    if not set(arguments.doors) <= set(_DOORS) or not arguments.doors:
        parser.error(f"--doors must name {' or '.join(_DOORS)}, got {','.join(arguments.doors)!r}")
    if arguments.url or arguments.grpc:
        if arguments.engine or arguments.ensemble:
            parser.error("--engine and --ensemble cannot be combined with --url or --grpc: no ensemble is started")
        if arguments.peers:
            parser.error("--peers cannot be combined with --url or --grpc; give the address of a peer with --beside")
        return None
    if arguments.peers and (arguments.engine == "sim" or arguments.ensemble):
        parser.error("--peers serve the demo model and cannot be combined with --ensemble or --engine sim")
    engine: Engine = arguments.engine or ("sim" if arguments.quick and not arguments.peers else "native")
    return OwnEnsemble(engine, arguments.replicas, arguments.doors, arguments.ensemble)


def _endpoints(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> "tuple[BenchEndpoint, ...]":
    from bench.serving.callers import BenchEndpoint, parse_origin

    urls = [*arguments.url, *arguments.beside]
    places = [("http", url, parse_origin(url).name) for url in urls]
    places += [("grpc", address, f"{address} grpc") for address in arguments.grpc]
    models = arguments.model or (["octet"] if not urls else [])
    if places and len(models) not in (1, len(places)):
        parser.error(f"name the models with --model: one for all, or one for each of the {len(places)} addresses")
    each = models * len(places) if len(models) == 1 else models
    return tuple(
        BenchEndpoint(kind, where, model, name) for (kind, where, name), model in zip(places, each, strict=False)
    )


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ServeMistake(f"--key {variable}: the environment variable is not set or is empty")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ServeMistake(f"--key {variable}: the API key must be printable ASCII without spaces")
    return key
