"""What the benches' commands share: their options, and how figures are published."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from bench.plot import PlotUnavailable
from bench.record import Record, lines_of, write_records
from bench.result import Meter, write_result
from bench.router_site import SiteFailed
from bench.trace import TraceError
from octet.text_io import file_words
from specialist.models.errors import ModelRefused

Benches: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
QUICK_RUNS = 2
FIGURES = """\
Every figure is the median of its runs; p10 and p90, in JSON low and high, are
the 10th and the 90th percentile by nearest rank. What is compared runs in
turns, in an order that changes from round to round; a ratio is taken round by
round. The system is "octet", a peer, or "limit" for a bound that nothing can
beat.
"""
_STANDARD_OUTPUT = Path("-")


class BenchParser(argparse.ArgumentParser):
    """Remembers the words it was given, for the result to say how it came about."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, rest = super().parse_known_args(args, namespace)
        parsed.words = tuple(args or ())
        return parsed, rest


def command(benches: Benches, name: str, about: str, summary: str) -> argparse.ArgumentParser:
    return benches.add_parser(
        name, description=about, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_common(parser: argparse.ArgumentParser, smaller: str, runs: int) -> None:
    parser.add_argument(
        "--json",
        type=Path,
        nargs="?",
        const=_STANDARD_OUTPUT,
        metavar="FILE",
        help="also write the figures, one JSON record a line; without a file: to standard output, and no table",
    )
    parser.add_argument(
        "--result",
        type=Path,
        metavar="FILE",
        help="also write the figures as one JSON document, with the machine they are of",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{QUICK_RUNS} runs instead of {runs}, and {smaller}: to see that it works, not how fast",
    )


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", type=Path, metavar="PATH", help="GGUF file or Hugging Face directory (default: the demo model)"
    )


def names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in text.split(",") if name))


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1, got {text!r}")
    return int(text)


def share(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"a share is a number from 0 to 1, got {text!r}")
    return number


def reporting(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """What a user can put right is told in one line."""

    def run_and_report(arguments: argparse.Namespace) -> int:
        arguments.meter = Meter.start()
        try:
            return run(arguments)
        except BrokenPipeError:
            raise
        except OSError as error:
            say(file_words(error))
            return 2
        except (TraceError, PlotUnavailable, ModelRefused, SiteFailed) as error:
            say(str(error))
            return 2

    return run_and_report


def say(line: str) -> None:
    print(f"octet bench: {line}", file=sys.stderr, flush=True)


def publish(arguments: argparse.Namespace, records: Sequence[Record], table: str, notes: Sequence[str] = ()) -> None:
    """The table, and the figures wherever they were asked for. Notes are for people, and are kept in the result."""
    if arguments.json == _STANDARD_OUTPUT:
        print(lines_of(records), end="")
    else:
        print(table)
        if arguments.json is not None:
            write_records(arguments.json, records)
    if notes:
        add_words(arguments, "\n".join(["", *notes]))
    if arguments.result is not None:
        meter: Meter = arguments.meter
        write_result(arguments.result, meter.result(arguments.bench, _told(arguments), records, notes))


def add_words(arguments: argparse.Namespace, words: str) -> None:
    """What is for people only."""
    print(words, file=sys.stderr if arguments.json == _STANDARD_OUTPUT else sys.stdout)


def _told(arguments: argparse.Namespace) -> str:
    """The command as it was typed, less where its figures went; of files only the names."""
    words = list(arguments.words)
    for option in ("--json", "--result"):
        while option in words:
            at = words.index(option)
            has_value = at + 1 < len(words) and not words[at + 1].startswith("-")
            del words[at : at + 1 + has_value]
    named = [Path(word).name if Path(word).is_file() else word for word in words]
    return " ".join(["octet", "bench", arguments.bench, *named])
