"""`octet router tune`: shadow thresholds from what shadows have shown."""

import argparse
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import get_args

from octet.command_line import ended
from octet.operate.asking import Commands, add_command, operator_at
from octet.operate.figures import last
from octet.sdk.operating import Comparison
from octet.text_io import write
from router.tuning.rule import Aim, Budget, Catch, Rule
from router.tuning.tune import Tuning, tune

_MORE = """
One for every intent, from the comparisons that the router keeps or from a file
of them, with what each threshold costs and catches. Nothing is changed: the
last lines say how to."""
_LEAST_SHARE, _MOST_SHARE = 0.01, 0.99
_THRESHOLD = ".shadow_threshold"


def add_tune_command(commands: Commands) -> None:
    parser = add_command(commands, "tune", "propose shadow thresholds from what shadows have shown", _MORE)
    source = parser.add_argument_group("comparisons")
    source.add_argument("--last", type=last, metavar="TIME", help="such as 24h; default: all that is kept")
    source.add_argument("--from", dest="file", type=Path, metavar="FILE", help="that --export wrote, instead")
    source.add_argument("--export", type=Path, metavar="FILE", help="write them down as lines of JSON, for later")
    rule = parser.add_argument_group("what a threshold is to do").add_mutually_exclusive_group()
    rule.add_argument(
        "--catch", type=share, default=0.9, metavar="SHARE", help="of the saves, at least (default: %(default)s)"
    )
    rule.add_argument("--budget", type=share, metavar="SHARE", help="of today's shadows, at most")
    parser.add_argument(
        "--by",
        choices=get_args(Aim),
        default="saves",
        help="what is to be caught: a save is a request in which only the shadow was right (default: %(default)s)",
    )
    parser.set_defaults(run=lambda arguments: ended("router tune", lambda: _run(parser, arguments)))


def share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not _LEAST_SHARE <= value <= _MOST_SHARE:
        raise argparse.ArgumentTypeError(f"a share is a number in [{_LEAST_SHARE}, {_MOST_SHARE}], got {text!r}")
    return value


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    if arguments.file is not None and (arguments.last is not None or arguments.export is not None):
        parser.error("--from has its comparisons already: it goes with neither --last nor --export")
    tuning = _from_file(arguments) if arguments.file is not None else _from_router(arguments)
    from router.tuning.plain import as_json
    from router.tuning.report import as_text

    write((json.dumps(as_json(tuning), ensure_ascii=False) if arguments.json else as_text(tuning)) + "\n")
    return 0


def _rule(arguments: argparse.Namespace) -> Rule:
    if arguments.budget is not None:
        return Budget(arguments.budget)
    return Catch(arguments.catch, arguments.by)


def _from_file(arguments: argparse.Namespace) -> Tuning:
    from router.tuning.comparisons import read_comparisons

    return tune(read_comparisons(arguments.file), _rule(arguments), {})


def _from_router(arguments: argparse.Namespace) -> Tuning:
    with operator_at(arguments) as operator:
        now = {each.name.removesuffix(_THRESHOLD): each.value for each in operator.knobs()}
        comparisons = operator.comparisons(arguments.last or 0.0)
        if arguments.export is None:
            return tune(comparisons, _rule(arguments), now)
        return _exporting(comparisons, arguments.export, lambda kept: tune(kept, _rule(arguments), now))


def _exporting(comparisons: Iterable[Comparison], path: Path, read: Callable[[Iterable[Comparison]], Tuning]) -> Tuning:
    from router.tuning.comparisons import write_comparisons

    with path.open("w", encoding="utf-8") as file:
        return read(write_comparisons(comparisons, file))
