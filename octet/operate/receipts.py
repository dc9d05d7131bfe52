"""`octet receipts`: what became of the latest requests, one line each."""

import argparse
import json
import re
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime

from octet.clock import wall_ms
from octet.operate.asking import Commands, add_command, as_typed, asks, show
from octet.operate.audit import number_of_entries
from octet.operate.figures import last
from octet.operate.slo import seconds
from octet.operate.table import table
from octet.sdk.errors import DeadlineExceeded, OctetError
from octet.sdk.operator import Operator
from octet.sdk.receipt import Receipt
from octet.telemetry.outcome import OUTCOMES, outcome_of, specialist_of
from octet.text_io import check_text, write
from octet.why.words import NO_ROOM

_MORE = """
Newest first. The marks: spilled (the second choice took it, for want of room),
stood in (somebody else answered than was decided), failed over (another replica
was lost or failed before one answered), asked (so many replicas, some without
room), preempted, shadowed (a copy was ordered). `octet why ID` tells the whole
story.

  octet receipts --specialist stl --outcome refused
  octet receipts --before 10m --limit 100
  octet receipts --follow"""
_OPTIONS = {"most": "--limit", "before_unix_ms": "--before", "specialist": "--specialist", "tenant": "--tenant"}
_HEADING = ("time", "id", "specialist", "outcome", "ttft", "total", "tokens", "marks")
_EVERY_S = 1.0
_REMEMBERED = 10_000
_ONE_LINE = 1000
"""Columns: whatever is in it, a receipt is one line."""
_MILLISECONDS = re.compile(r"[0-9]{1,18}")


def add_receipts_command(commands: Commands) -> None:
    parser = add_command(commands, "receipts", "what became of the latest requests, one line each", _MORE)
    parser.add_argument("--specialist", default="", metavar="NAME", help="who answered, or was to answer")
    parser.add_argument("--outcome", default="", choices=OUTCOMES, help="only those that ended so")
    parser.add_argument(
        "--limit", type=number_of_entries, default=50, metavar="N", help="at most so many; default: %(default)s"
    )
    parser.add_argument(
        "--before",
        type=moment_ms,
        default=0,
        metavar="TIME",
        help="older ones: 10m ago, 2026-01-31T12:00, or ms of 1970",
    )
    parser.add_argument("--tenant", default="", metavar="NAME", help="whose; default: everybody's")
    parser.add_argument("--follow", action="store_true", help="those that come from now on as well, until Ctrl-C")
    asks(parser, "receipts", _receipts)


def moment_ms(text: str) -> int:
    """Milliseconds since 1970."""
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    with suppress(ValueError, OverflowError, OSError):
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    try:
        return wall_ms() - round(last(text) * 1000)
    except argparse.ArgumentTypeError:
        told = "10m (ago), 2026-01-31T12:00, or milliseconds since 1970"
        raise argparse.ArgumentTypeError(f"a moment is written as {told}, got {text!r}") from None


def _receipts(operator: Operator, arguments: argparse.Namespace) -> int:
    check_text("--specialist", arguments.specialist)
    check_text("--tenant", arguments.tenant)
    if arguments.follow and arguments.before:
        raise ValueError("--before and --follow do not go together: what comes from now on is not older")
    if arguments.follow:
        return _follow(operator, arguments)
    found = _found(operator, arguments)
    plain = {"receipts": [each.to_dict() for each in found]}
    return show(arguments, plain, shown(found) if found else "there are no receipts of that kind")


def _found(operator: Operator, arguments: argparse.Namespace) -> list[Receipt]:
    """Raises OctetError."""
    found = operator.receipts(
        arguments.specialist,
        outcome=arguments.outcome,
        most=arguments.limit,
        before_unix_ms=arguments.before,
        tenant=arguments.tenant,
    )
    try:
        return list(found)
    except OctetError as error:
        raise as_typed(error, _OPTIONS) from None


def _follow(operator: Operator, arguments: argparse.Namespace) -> int:
    """Oldest first, each once. What comes in greater numbers than are asked for at a time is missed, and that said."""
    seen = Seen()
    ends = None if arguments.timeout is None else time.monotonic() + arguments.timeout
    with suppress(DeadlineExceeded):
        while ends is None or time.monotonic() < ends:
            found = _found(operator, arguments)
            fresh = seen.fresh(found)
            if len(fresh) == len(found) == arguments.limit and seen.has_looked:
                _say(arguments, f"more than {len(fresh)} have come since: some are not shown; ask for a larger --limit")
            for each in reversed(fresh):
                write((json.dumps(each.to_dict(), ensure_ascii=False) if arguments.json else line(each)) + "\n")
            seen.has_looked = True
            time.sleep(_EVERY_S)
    return 0


def _say(arguments: argparse.Namespace, words: str) -> None:
    write((json.dumps({"note": words}) if arguments.json else words) + "\n")


class Seen:
    """Which receipts have been shown; the oldest are forgotten."""

    def __init__(self, most: int = _REMEMBERED) -> None:
        self.has_looked = False
        self._most = most
        self._known: OrderedDict[tuple[str, str, int], None] = OrderedDict()

    def fresh(self, receipts: Sequence[Receipt]) -> list[Receipt]:
        """Those that had not been seen, which now have."""
        found = [each for each in receipts if _name(each) not in self._known]
        for each in reversed(receipts):
            self._known[_name(each)] = None
            self._known.move_to_end(_name(each))
        while len(self._known) > max(self._most, len(receipts)):
            self._known.popitem(last=False)
        return found


def _name(receipt: Receipt) -> tuple[str, str, int]:
    return receipt.tenant, receipt.request_id, receipt.created_unix_ms


def shown(receipts: Iterable[Receipt]) -> str:
    return table(_HEADING, [row(each) for each in receipts], width=_ONE_LINE)


def line(receipt: Receipt) -> str:
    """The same without columns, for lines that come one after the other."""
    return table(row(receipt), (), width=_ONE_LINE)


def row(receipt: Receipt) -> tuple[str, ...]:
    reason = "" if receipt.error is None or not receipt.error.reason else f": {receipt.error.reason}"
    return (
        _time(receipt.created_unix_ms),
        receipt.request_id,
        specialist_of(receipt.wire) or "nobody",
        outcome_of(receipt.wire) + reason,
        seconds(receipt.timings.first_chunk),
        seconds(receipt.timings.total),
        "" if receipt.usage is None else str(receipt.usage.completion_tokens),
        ", ".join(marks(receipt)),
    )


def marks(receipt: Receipt) -> list[str]:
    between, usage = receipt.between, receipt.usage
    found = []
    if between is not None and between.spilled and receipt.admission is not None:
        found.append("spilled")
    if between is not None and between.instead_of and receipt.specialist not in ("", between.instead_of):
        found.append(f"stood in for {between.instead_of}")
    if receipt.error is None and any(each.reason and each.reason not in NO_ROOM for each in receipt.attempts):
        found.append("failed over")
    elif len(receipt.attempts) > 1:
        found.append(f"{len(receipt.attempts)} asked")
    if usage is not None and usage.times_preempted:
        found.append(f"preempted {usage.times_preempted}x")
    if between is not None and between.shadow is not None:
        found.append(f"shadowed by {between.shadow.specialist}")
    return found


def _time(unix_ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(unix_ms / 1000):%m-%d %H:%M:%S}"
    except (OverflowError, OSError, ValueError):
        return f"{unix_ms} ms"
