"""`octet simulate`: how many replicas a trace needs."""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from random import Random

from bench.atomic_file import write_atomically
from bench.capacity.demand import Ask, DemandRefused, fitted, hurried, rate_of, read_shapes, shared_out
from bench.capacity.plot import plot_capacity
from bench.capacity.promise import Figures
from bench.capacity.search import Found, NotEnough, Trial, fewest
from bench.commands.common import count, share
from bench.plot import PlotUnavailable
from bench.result import Meter, write_result
from bench.table import aligned, figure
from bench.trace import TraceError
from octet.config.ensemble import Ensemble
from octet.config.read import ConfigInvalid, read_ensemble
from octet.text_io import file_words
from specialist.engines.sim.calibration import CalibrationInvalid

_ABOUT = """\
Play a trace through an ensemble on simulated time, and look whether its
specialists keep what its configuration promises (slo). Without --replicas: find
the fewest replicas with which they do. Router, admission, scheduler and block
pool are the real ones; engines take the time that the cost model of each
specialist says (cost_model, from `octet bench engine --calibrate`; without one,
that of a 135M model on two CPU cores).

Exit status: 0 when every promise is kept, 1 when one is not, 2 when something
must be put right first.
"""
_MOST_REPLICAS = 128


def add_simulate_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "simulate",
        description=_ABOUT,
        help="how many replicas a trace needs",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", type=Path, metavar="CONFIG", help="as for `octet serve`")
    parser.add_argument(
        "--trace", type=Path, required=True, metavar="FILE", help="an Azure LLM trace (.csv) or a Mooncake trace (JSON)"
    )
    parser.add_argument("--replicas", type=_replicas, metavar="N|NAME=N,...", help="play only this many")
    parser.add_argument(
        "--most", type=count, default=_MOST_REPLICAS, metavar="N", help="of a specialist, to search up to"
    )
    parser.add_argument("--rate", type=_positive, metavar="R", help="requests a second (default: the trace's own)")
    parser.add_argument("--seconds", type=_positive, metavar="S", help="of the trace, simulated (default: all of it)")
    parser.add_argument("--mix", type=_mix, metavar="NAME=SHARE,...", help="who is asked (default: all alike)")
    parser.add_argument(
        "--refused", type=share, default=0.01, metavar="SHARE", help="not answered, at most (default: 0.01)"
    )
    parser.add_argument("--routers", type=count, default=1, metavar="N", help="that share the load (default: 1)")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw TTFT by replicas, as .svg or .png")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything that was tried")
    parser.add_argument(
        "--result",
        type=Path,
        metavar="FILE",
        help="also write the answer's figures, and the machine they are of, as JSON",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    try:
        return _simulate(arguments)
    except (ConfigInvalid, TraceError, DemandRefused, CalibrationInvalid, PlotUnavailable) as error:
        _say(str(error))
    except OSError as error:
        _say(file_words(error))
    return 2


def _simulate(arguments: argparse.Namespace) -> int:
    from bench.capacity.play import Played, Stage, play  # loads the router and the replicas

    meter = Meter.start()
    ensemble = read_ensemble(arguments.config)
    stage = Stage.of(ensemble, arguments.routers, arguments.seed, arguments.refused)
    asks = _asks(arguments, ensemble, stage.contexts)

    runs: list[Played] = []

    def trial(replicas: Mapping[str, int]) -> Mapping[str, Figures]:
        runs.append(play(stage, asks, replicas, _say))
        _say(f"{sum(replicas.values())} replicas: {runs[-1].words}")
        return runs[-1].figures

    if arguments.replicas is None:
        found = _searched(ensemble, trial, arguments.most)
    else:
        counts = {name: _count_of(arguments.replicas, name) for name in ensemble.names}
        figures = trial(counts)
        found = Found(counts, figures, (figures,))
    answer = "; ".join((_answer(found), *runs[-1].misses))
    _tell(arguments, ensemble, found, answer)
    if arguments.result is not None:
        write_result(arguments.result, meter.result("simulate", _told(arguments), runs[-1].records(), [answer]))
    is_kept = all(figures.is_kept for figures in found.figures.values())
    return 0 if is_kept and not runs[-1].misses else 1


def _searched(ensemble: Ensemble, trial: Trial, most: int) -> Found:
    """The fewest that do; where not even the most do, those."""
    try:
        return fewest(ensemble.names, trial, most)
    except NotEnough as error:
        _say(str(error))
        return error.found


def _asks(arguments: argparse.Namespace, ensemble: Ensemble, contexts: Mapping[str, int]) -> list[Ask]:
    mix = arguments.mix or dict.fromkeys(ensemble.names, 1.0)
    for name in {**mix, **(arguments.replicas or {})}:
        if name and name not in ensemble.names:
            raise DemandRefused(f"{name!r} is no specialist of {ensemble.name}: {', '.join(ensemble.names)}")
    shapes = read_shapes(arguments.trace)
    played = hurried(shapes, arguments.rate, arguments.seconds)
    asks = shared_out(played, mix, Random(arguments.seed))
    fit = [fitted(ask, contexts[ask.specialist]) for ask in asks]
    num_cut = sum(ask != whole for ask, whole in zip(fit, asks, strict=True))
    of_own = f"the trace has {rate_of(shapes):.3g}/s of its own"
    cut = f", {num_cut:,} of them cut to what a specialist can take" if num_cut else ""
    _say(f"{len(fit):,} requests in {fit[-1].at if fit else 0:,.1f} s{cut}; {of_own}")
    if not fit:
        raise DemandRefused("no request of the trace comes within so short a time")
    return fit


def _tell(arguments: argparse.Namespace, ensemble: Ensemble, found: Found, answer: str) -> None:
    print(_table(found.figures.values()))
    print(f"\n{answer}")
    tried = [figures for trial in found.trials for figures in trial.values()]
    if arguments.json is not None:
        document = {"replicas": dict(found.replicas), "tried": [asdict(figures) for figures in tried]}
        write_atomically(arguments.json, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())
    if arguments.plot is not None:
        promised = {specialist.name: specialist.slo.ttft_p95 for specialist in ensemble.specialists}
        plot_capacity(arguments.plot, tried, promised, answer)


def _answer(found: Found) -> str:
    total = sum(found.replicas.values())
    missed = [name for name, figures in found.figures.items() if not figures.is_kept]
    if missed:
        return f"{total} replicas are not enough: {', '.join(missed)} would not keep what they promise"
    parts = ", ".join(f"{name} {count}" for name, count in found.replicas.items())
    return f"{total} replicas {'are needed' if len(found.trials) > 1 else 'are enough'}: {parts}"


def _table(all_figures: Iterable[Figures]) -> str:
    header = (
        "specialist",
        "replicas",
        "requests",
        "refused",
        "failed",
        "TTFT p50",
        "p95",
        "p99",
        "ITL p95",
        "busy",
        "",
    )
    units = ("", "", "", "", "", "ms", "ms", "ms", "ms", "%", "")
    rows = [
        (
            each.specialist,
            *map(figure, (each.replicas, each.requests, each.refused, each.failed)),
            *(figure(1000 * seconds) for seconds in (*each.ttft, each.itl[1])),
            figure(100 * each.busy),
            each.words,
        )
        for each in all_figures
    ]
    return aligned([header, units], rows, "<" + ">" * 9 + "<")


def _count_of(replicas: Mapping[str, int], name: str) -> int:
    """The empty name is for all that are not named."""
    return replicas.get(name, replicas.get("", 1))


def _replicas(text: str) -> dict[str, int]:
    """ "4", or "stl=2,algo=3"."""
    pairs = [part.rpartition("=") for part in text.split(",")]
    return {name: count(number) for name, _, number in pairs}


def _mix(text: str) -> dict[str, float]:
    pairs = [part.partition("=") for part in text.split(",")]
    return {name: _positive(share) for name, _, share in pairs}


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return number


def _told(arguments: argparse.Namespace) -> str:
    """What was asked, as it would be asked again: less where it went, and only the names of files."""
    options = ("replicas", "most", "rate", "seconds", "mix", "refused", "routers", "seed")
    given = {name: getattr(arguments, name) for name in options if getattr(arguments, name) is not None}
    words = [f"--{name} {_shown(value)}" for name, value in given.items()]
    return " ".join(["octet simulate", arguments.config.name, "--trace", arguments.trace.name, *words])


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ",".join(f"{name}={count}" if name else str(count) for name, count in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _say(line: str) -> None:
    print(f"octet simulate: {line}", file=sys.stderr, flush=True)
