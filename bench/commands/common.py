"""The options that all benches have, and how their figures are published."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.plots import View, plot_views
from bench.processes import SiteFailed
from bench.timing import Findings, Targets, format_json_lines, table_of_spreads, write_records
from octet.cli.arguments import Commands, add_parser, parse_float
from octet.terminal import format_error
from simulation.plots import PlotUnavailable
from simulation.results import BenchRecord, RunMeter, write_result
from simulation.traces import TraceError
from specialist.models.fields import ModelRefused

Run = Callable[[argparse.ArgumentParser, argparse.Namespace], int]
QUICK_RUNS = 2
FIGURES = """\
Every figure is the median of its runs; p10 and p90 (low and high in JSON) are
the 10th and 90th percentiles by nearest rank. Systems take turns, in an order
that changes from round to round; ratios are computed per round. A system is
"octet", a peer, or "limit", a bound that no system can beat.
"""
_STANDARD_OUTPUT = Path("-")


class BenchParser(argparse.ArgumentParser):
    """Keeps the arguments, so that a result can name its command."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, rest = super().parse_known_args(args, namespace)
        parsed.words = tuple(args or ())
        return parsed, rest


def add_bench(
    benches: Commands, name: str, about: str, summary: str, smaller: str, runs: int, run: Run
) -> argparse.ArgumentParser:
    """Add a command with the options of all benches. `smaller` says what --quick reduces besides the number of runs."""
    parser = add_parser(benches, name, summary, description=f"{about}\n{FIGURES}")
    records = "also write the figures as one JSON record per line; without FILE: to standard output, without the table"
    parser.add_argument("--json", type=Path, nargs="?", const=_STANDARD_OUTPUT, metavar="FILE", help=records)
    document = "also write the figures and a description of the machine as one JSON document"
    parser.add_argument("--result", type=Path, metavar="FILE", help=document)
    quick = f"{QUICK_RUNS} runs instead of {runs}, and {smaller}: to test the bench itself, not the speed"
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.set_defaults(run=lambda arguments: _report_errors(run, parser, arguments), usual_runs=runs)
    return parser


def add_model(parser: argparse.ArgumentParser) -> None:
    about = "GGUF file or Hugging Face directory (default: the demo model)"
    parser.add_argument("--model", type=Path, metavar="PATH", help=about)


def get_runs(arguments: argparse.Namespace) -> int:
    return QUICK_RUNS if arguments.quick else int(arguments.usual_runs)


def parse_numbers(most: float, expected: str) -> Callable[[str], tuple[float, ...]]:
    """Return an argument type for numbers above 0 and up to `most`, separated by commas."""

    def parse(text: str) -> tuple[float, ...]:
        values = tuple(dict.fromkeys(map(parse_float, text.split(","))))
        if not all(0 < value <= most for value in values):
            raise argparse.ArgumentTypeError(f"{expected}, got {text!r}")
        return values

    return parse


def names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in text.split(",") if name))


def _report_errors(run: Run, parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Run the bench. An error that the user can correct is printed as a single line."""
    arguments.meter = RunMeter()
    try:
        return run(parser, arguments)
    except BrokenPipeError:
        raise
    except (OSError, TraceError, PlotUnavailable, ModelRefused, SiteFailed) as error:
        say(format_error(error))
        return 2


def say(line: str) -> None:
    print(f"octet bench: {line}", file=sys.stderr, flush=True)


def publish(
    arguments: argparse.Namespace,
    records: Sequence[BenchRecord],
    targets: Targets | None = None,
    notes: Sequence[str] = (),
    *,
    table: str = "",
) -> int:
    """Print the given table, or a table of all records, and the notes. Write the files that the options name. Return
    the exit code 0."""
    table = table or table_of_spreads(records, targets or {})
    if arguments.json == _STANDARD_OUTPUT:
        print(format_json_lines(records), end="")
    else:
        print(table)
        if arguments.json is not None:
            write_records(arguments.json, records)
    if notes:
        add_words(arguments, "\n".join(["", *notes]))
    if arguments.result is not None:
        meter: RunMeter = arguments.meter
        write_result(arguments.result, meter.result(arguments.bench, _command_line(arguments), records, notes))
    return 0


def publish_findings(arguments: argparse.Namespace, findings: Findings, targets: Targets, *views: View) -> int:
    """Publish the results of a bench with peers; plot them with --plot. Return the exit code: 1 if a peer failed."""
    publish(arguments, findings.records, targets, findings.notes)
    if arguments.plot is not None:
        plot_views(arguments.plot, views, findings.records)
    return 1 if findings.failures else 0


def add_words(arguments: argparse.Namespace, words: str) -> None:
    print(words, file=sys.stderr if arguments.json == _STANDARD_OUTPUT else sys.stdout)


def _command_line(arguments: argparse.Namespace) -> str:
    """Return the command as typed, without output options, and with files reduced to their names."""
    words = list(arguments.words)
    for option in ("--json", "--result"):
        while option in words:
            at = words.index(option)
            has_value = at + 1 < len(words) and not words[at + 1].startswith("-")
            del words[at : at + 1 + has_value]
    named = [Path(word).name if Path(word).is_file() else word for word in words]
    return " ".join(["octet", "bench", arguments.bench, *named])
