"""`octet simulate`: how many replicas a trace needs."""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from errno import ENOTDIR
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from octet.cli.arguments import (
    Commands,
    add_option,
    add_parser,
    number_type,
    parse_positive,
    parse_share,
    report_errors,
)
from octet.config.ensemble import Ensemble
from octet.config.loader import read_ensemble
from octet.terminal import pluralize
from simulation import traces
from simulation.plots import plot_capacity, require_matplotlib
from simulation.results import RunMeter, format_figure, format_table, write_atomically, write_result
from simulation.traces import DemandRefused, TraceRequest

if TYPE_CHECKING:  # they load routers and schedulers, which `--help` does not need
    from simulation.capacity import SpecialistFigures
    from simulation.search import CapacityAnswer

_parse_positive_number = number_type(lambda number: 0 < number < 1e9, "must be a number above 0")
_DESCRIPTION = """\
Replay a trace through an ensemble in simulated time and check whether its
specialists meet their objectives (slo). Without --replicas, find the smallest
number of replicas that meets them, or what limits them instead. Router,
admission, scheduler and block pool are the real ones; each engine takes the time
given by the specialist's cost model (cost_model, from `octet bench engine
--calibrate`; by default that of a 135M model on two CPU cores).

Exit status: 0 when every objective is met, 1 when one is missed, 2 when an option
or a file is invalid.
"""
_MAX_REPLICAS = 128


def add_simulate_command(commands: Commands) -> None:
    parser = add_parser(commands, "simulate", "find how many replicas a trace needs", description=_DESCRIPTION)
    option = partial(add_option, parser)
    option("config", "CONFIG", "configuration file, as for `octet serve`", Path)
    option("--trace", "FILE", "an Azure LLM trace (.csv) or a Mooncake trace (JSON)", Path, required=True)
    option("--replicas", "N|NAME=N,...", "simulate only these numbers of replicas", _parse_replicas)
    option("--most", "N", "largest number of replicas of one specialist", parse_positive, default=_MAX_REPLICAS)
    option("--rate", "R", "requests per second (default: those of the trace)", _parse_positive_number)
    option("--seconds", "S", "simulated seconds of the trace (default: all)", _parse_positive_number)
    option("--mix", "NAME=SHARE,...", "share of requests for each specialist (default: equal)", _parse_mix)
    option("--refused", "SHARE", "largest share of unanswered requests (default: 0.01)", parse_share, default=0.01)
    option("--routers", "N", "routers that share the load (default: 1)", parse_positive, default=1)
    option("--seed", "N", parse=int, default=0)
    option("--plot", "FILE", "plot TTFT by number of replicas, as .svg or .png", Path)
    option("--json", "FILE", "also write all trials as JSON", Path)
    option("--result", "FILE", "also write the final figures and a description of the machine as JSON", Path)
    parser.set_defaults(run=lambda arguments: report_errors("simulate", lambda: _simulate(arguments)))


def _simulate(arguments: argparse.Namespace) -> int:
    from simulation.capacity import SimulationRun, SimulationSetup, play, play_alone
    from simulation.search import CapacityAnswer, explain_limit, find_fewest

    _check_outputs(arguments)
    meter = RunMeter()
    ensemble = read_ensemble(arguments.config)
    setup = SimulationSetup.from_config(ensemble, arguments.routers, arguments.seed, arguments.refused)
    requests = _read_requests(arguments, ensemble, setup.contexts)

    runs: list[SimulationRun] = []

    def trial(replicas: Mapping[str, int]) -> "Mapping[str, SpecialistFigures]":
        runs.append(play(setup, requests, replicas, _print_note))
        _print_note(f"{pluralize(sum(replicas.values()), 'replica')}: {runs[-1].format_summary()}")
        return runs[-1].figures

    def alone(name: str) -> "SpecialistFigures":
        _print_note(f"{name} misses an objective; its requests one at a time, to see what limits it")
        return play_alone(setup, requests, name, _print_note)

    if arguments.replicas is None:
        found = find_fewest(ensemble.names, trial, alone, requests, arguments.most)
    else:
        others = arguments.replicas.get("", 1)  # the empty name stands for all specialists not named
        counts = {name: arguments.replicas.get(name, others) for name in ensemble.names}
        figures = trial(counts)
        best = {name: alone(name) for name, each in figures.items() if each.misses}
        limits = {name: explain_limit(figures[name], each, requests) for name, each in best.items() if each.misses}
        found = CapacityAnswer(counts, figures, (figures,), limits)
    last = next(run for run in reversed(runs) if run.figures is found.figures)
    answer = _answer(arguments, found, last.misses)
    _print_answer(arguments, ensemble, found, answer)
    if arguments.result is not None:
        write_result(arguments.result, meter.result("simulate", _command_line(arguments), last.records(), answer))
    return 1 if found.missing or last.misses else 0


def _check_outputs(arguments: argparse.Namespace) -> None:
    """Refuse, before minutes of simulation, outputs that cannot be written."""
    if arguments.plot is not None:
        require_matplotlib()
    for path in (arguments.plot, arguments.json, arguments.result):
        if path is not None and not path.parent.is_dir():
            raise NotADirectoryError(ENOTDIR, "no such folder", str(path.parent))


def _read_requests(
    arguments: argparse.Namespace, ensemble: Ensemble, contexts: Mapping[str, int]
) -> list[TraceRequest]:
    mix = arguments.mix or dict.fromkeys(ensemble.names, 1.0)
    for name in {**mix, **(arguments.replicas or {})}:
        if name and name not in ensemble.names:
            raise DemandRefused(f"{ensemble.name} has no specialist {name!r} (known: {', '.join(ensemble.names)})")
    demand = traces.read_demand(arguments.trace)
    scaled = traces.scale_demand(demand, arguments.rate, arguments.seconds)
    whole = traces.assign_specialists(scaled, mix, Random(arguments.seed))
    fit = [traces.fit_to_context(each, contexts[each.specialist]) for each in whole]
    num_cut = sum(request != uncut for request, uncut in zip(fit, whole, strict=True))
    of_own = f"the trace itself has {traces.request_rate(demand):.3g}/s"
    cut = f", {num_cut:,} of them cut to a specialist's context" if num_cut else ""
    if not fit:
        raise DemandRefused("the trace has no request within the simulated time")
    _print_note(f"{pluralize(len(fit), 'request')} in {fit[-1].at:,.1f} s{cut}; {of_own}")
    return fit


def _print_answer(
    arguments: argparse.Namespace, ensemble: Ensemble, found: "CapacityAnswer", answer: list[str]
) -> None:
    print(_table(found.figures.values()))
    print("", *answer, sep="\n")
    tried = [figures for trial in found.trials for figures in trial.values()]
    if arguments.json is not None:
        tried_figures = [asdict(figures) for figures in tried]
        document = {"replicas": dict(found.replicas), "limits": dict(found.limits), "tried": tried_figures}
        write_atomically(arguments.json, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())
    if arguments.plot is not None:
        targets = {specialist.name: specialist.slo.ttft_p95 for specialist in ensemble.specialists}
        plot_capacity(arguments.plot, tried, targets, answer[0])


def _answer(arguments: argparse.Namespace, found: "CapacityAnswer", router_misses: tuple[str, ...]) -> list[str]:
    """Return the sentences of the answer. Only met objectives make replicas needed or enough."""
    is_search = arguments.replicas is None
    counts = {name: f"{name} {count}" for name, count in found.replicas.items()}
    num_all, listed = sum(found.replicas.values()), ", ".join(counts.values())
    total, verb = pluralize(num_all, "replica"), "is" if num_all == 1 else "are"
    if found.missing:
        sentences = [f"{total} {verb} not enough: {', '.join(found.missing)} would miss objectives"]
    elif router_misses:
        sentences = [f"{total} would meet the objectives behind more routers: {listed}"]
    elif any(figures.is_promising and figures.requests for figures in found.figures.values()):
        sentences = [f"{total} {verb} {'needed' if is_search else 'enough'}: {listed}"]
    else:
        sentences = [f"{total} can answer the requests: {listed}"]
    for name in found.missing:
        if name in found.limits:
            sentences.append(f"{name}: {found.limits[name]}")
        elif is_search:
            sentences.append(f"{name}: --most {arguments.most} is too few; more may help")
    met = [counts[name] for name, each in found.figures.items() if each.requests and name not in found.missing]
    if is_search and found.missing and met:
        sentences.append(f"the others need: {', '.join(met)}")
    sentences += router_misses
    unjudged = [name for name, each in found.figures.items() if each.requests and not each.is_promising]
    if unjudged:
        sentences.append(f"no objectives (slo): {', '.join(unjudged)}; only unanswered requests count as a miss")
    unused = [name for name, each in found.figures.items() if not each.requests]
    if unused:
        sentences.append(f"no requests: {', '.join(unused)}; the simulation says nothing about their replicas")
    return sentences


def _table(all_figures: "Iterable[SpecialistFigures]") -> str:
    latencies = ("TTFT p50", "p95", "p99", "ITL p95")
    header = ("specialist", "replicas", "requests", "refused", "failed", *latencies, "busy", "")
    units = ("", "", "", "", "", *["ms"] * len(latencies), "%", "")
    rows = []
    for each in all_figures:
        counts = map(format_figure, (each.replicas, each.requests, each.refused, each.failed))
        times = (format_figure(1000 * seconds) for seconds in (*each.ttft, each.itl[1]))
        rows.append((each.specialist, *counts, *times, format_figure(100 * each.busy), each.format_misses()))
    return format_table([header, units], rows, "<" + ">" * 9 + "<")


def _parse_replicas(text: str) -> dict[str, int]:
    """Parse "4" (replicas of every specialist) or "stl=2,algo=3" (replicas by specialist)."""
    pairs = [part.rpartition("=") for part in text.split(",")]
    _check_names([name for name, _, _ in pairs])
    return {name: parse_positive(number) for name, _, number in pairs}


def _parse_mix(text: str) -> dict[str, float]:
    pairs = [part.partition("=") for part in text.split(",")]
    _check_names([name for name, _, _ in pairs])
    return {name: _parse_positive_number(share) for name, _, share in pairs}


def _check_names(names: list[str]) -> None:
    if len(set(names)) < len(names):
        raise argparse.ArgumentTypeError("each specialist may be named once")


def _command_line(arguments: argparse.Namespace) -> str:
    """Return the command that repeats the run, without output options. Files are named without their folders."""
    options = ("replicas", "most", "rate", "seconds", "mix", "refused", "routers", "seed")
    given = {name: getattr(arguments, name) for name in options if getattr(arguments, name) is not None}
    words = [f"--{name} {_format_option(value)}" for name, value in given.items()]
    return " ".join(["octet simulate", arguments.config.name, "--trace", arguments.trace.name, *words])


def _format_option(value: object) -> str:
    if isinstance(value, dict):
        return ",".join(f"{name}={count}" if name else str(count) for name, count in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _print_note(line: str) -> None:
    print(f"octet simulate: {line}", file=sys.stderr, flush=True)
