"""`octet audit`: who changed what, and why; `octet events`: the same as it happens."""

import argparse
import json
from contextlib import suppress
from datetime import datetime

from octet.operate.asking import Commands, add_command, asks, show
from octet.operate.figures import since
from octet.operate.table import table
from octet.sdk.errors import DeadlineExceeded
from octet.sdk.operating import AuditEntry, OperatorEvent
from octet.sdk.operator import Operator
from octet.text_io import write

_HEADING = ("no.", "ago", "who", "what", "subject", "before", "after", "why")


def add_audit_commands(commands: Commands) -> None:
    audit = add_command(commands, "audit", "who changed what, when and why, newest first")
    audit.add_argument(
        "subject",
        nargs="?",
        default="",
        metavar="SUBJECT",
        help="the whole name of a specialist, knob or replica, or: store",
    )
    audit.add_argument("--most", type=number_of_entries, default=30, metavar="N", help="entries; default: %(default)s")
    asks(audit, "audit", _audit)
    events = add_command(commands, "events", "what happens from now on, until Ctrl-C or for --timeout")
    asks(events, "events", _events)


def number_of_entries(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a number of entries is at least 1, got {text!r}")
    return int(text)


def _audit(operator: Operator, arguments: argparse.Namespace) -> int:
    entries = list(operator.audit(arguments.subject, most=arguments.most))
    text = table(_HEADING, [_row(each) for each in entries]) if entries else _nothing(arguments.subject)
    return show(arguments, {"audit": [each.to_dict() for each in entries]}, text)


def _nothing(subject: str) -> str:
    return f"nothing is written down about {subject!r}" if subject else "nothing is written down yet"


def _events(operator: Operator, arguments: argparse.Namespace) -> int:
    with suppress(DeadlineExceeded):  # all the time that was given
        for event in operator.events():
            write((json.dumps(event.to_dict(), ensure_ascii=False) if arguments.json else told(event)) + "\n")
    return 0


def told(event: OperatorEvent) -> str:
    """One line."""
    at = f"{datetime.fromtimestamp(event.at_unix_ms / 1000):%H:%M:%S}"
    if event.audit is not None:
        return f"{at} {_change(event.audit)}"
    if event.dropped is not None:
        return f"{at} {event.dropped} events were missed: they were not read quickly enough"
    if event.store_trouble:
        return f"{at} the store does not answer, no change can be made: {event.store_trouble}"
    return f"{at} the store answers"


def _change(entry: AuditEntry) -> str:
    moved = f": {entry.before or '-'} -> {entry.after or '-'}" if entry.before or entry.after else ""
    return f"{entry.who}: {entry.what} {entry.subject}{moved} ({entry.why})"


def _row(entry: AuditEntry) -> tuple[str, ...]:
    return (
        str(entry.number),
        since(entry.at_unix_ms),
        entry.who,
        entry.what,
        entry.subject,
        entry.before,
        entry.after,
        entry.why,
    )
