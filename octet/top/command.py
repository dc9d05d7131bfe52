"""`octet top` on the command line."""

import argparse
import json
import os
import signal
import sys
import time

import grpc

from octet.arguments import seconds
from octet.clock import Clock, SystemClock
from octet.command_line import ended
from octet.operate.asking import Commands, add_command, operator_at
from octet.operate.table import terminal_width
from octet.sdk.caller import LOOKUP_S
from octet.sdk.errors import DeadlineExceeded
from octet.sdk.operator import Operator
from octet.supervise.signals import Signals
from octet.text_io import write
from octet.top.bell import Bell
from octet.top.feed import Feed
from octet.top.frame import KEYS, plain_lines
from octet.top.live import SIGNALS, Ended, Live
from octet.top.state import Known
from octet.top.terminal import Screen
from octet.top.text import plain_text

_MORE = f"""
What is wrong now, and a row for each specialist: rates, queue, KV blocks,
latencies beside their targets, correctness beside its floor, breaker and lane.
It is drawn anew as things change; where the router is silent or gone, it says how
old the figures are and goes on trying. Without a terminal, or with --once, it is
printed once as text; with --interval again and again.

  {KEYS}

  octet top
  octet top --once
  octet top --json | jq '.troubles'"""

_ONE_LINE = 1000
"""Columns, where there is no terminal: a row is a line."""


def add_top_command(commands: Commands) -> None:
    parser = add_command(commands, "top", "the whole ensemble in the terminal, as it is now", _MORE)
    parser.add_argument("--once", action="store_true", help="print it once, as text")
    parser.add_argument(
        "--interval", type=seconds, metavar="SECONDS", help="show what is new no more often; as text: print it so often"
    )
    parser.set_defaults(run=lambda arguments: ended("top", lambda: _top(arguments)))


def _top(arguments: argparse.Namespace) -> int:
    if arguments.once and arguments.interval is not None:
        raise ValueError("--once and --interval do not go together")
    if arguments.json or arguments.once or not _is_terminal():
        with operator_at(arguments) as operator:
            return _printed(operator, arguments)
    return _live(arguments)


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") not in ("", "dumb", None)


def _printed(operator: Operator, arguments: argparse.Namespace) -> int:
    """Once; with an interval until Ctrl-C, or for the time given."""
    ends = None if arguments.timeout is None else time.monotonic() + arguments.timeout
    while True:
        overview = operator.overview()
        text = plain_text(plain_lines(Known(overview, 0.0), terminal_width() if sys.stdout.isatty() else _ONE_LINE))
        write((json.dumps(overview.to_dict(), ensure_ascii=False) if arguments.json else text) + "\n")
        if arguments.interval is None or (ends is not None and time.monotonic() + arguments.interval >= ends):
            return 0
        if not arguments.json:
            write("\n")
        time.sleep(arguments.interval)


def _live(arguments: argparse.Namespace) -> int:
    clock = SystemClock()
    ends = None if arguments.timeout is None else clock.now() + arguments.timeout
    patient = argparse.Namespace(**{**vars(arguments), "timeout": None})
    bell = Bell()
    with bell, Feed(lambda: operator_at(patient), clock, bell.ring) as feed:
        if feed.first(arguments.timeout or LOOKUP_S) is None:
            words = f"no answer from {arguments.address} within the time given"
            raise DeadlineExceeded(words, code=grpc.StatusCode.DEADLINE_EXCEEDED)
        done = _shown(feed, clock, bell, arguments.interval or 0.0, ends)
    if done.by is not None:
        signal.signal(done.by, signal.SIG_DFL)
        os.kill(os.getpid(), done.by)
    return done.status


def _shown(feed: Feed, clock: Clock, bell: Bell, interval: float, ends: float | None) -> Ended:
    keys, out = sys.stdin.fileno(), sys.stdout.fileno()
    sys.stdout.flush()
    with Signals(SIGNALS) as signals, Screen(keys, out, colour=not os.environ.get("NO_COLOR")) as screen:
        return Live(screen, signals, keys, bell, clock).run(feed, interval, ends)
