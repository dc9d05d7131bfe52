"""`octet top`: a live view of the ensemble."""

import argparse
import os
import re
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import Any

import grpc
from rich.console import Console, ConsoleDimensions, Group

from octet.cli import router_client as cli
from octet.cli.arguments import Commands, add_flag, add_option, parse_seconds
from octet.cli.top_view import KEY_HELP, ReceivedOverview, TopView, plain_text, render_frame, render_plain
from octet.client.base import LOOKUP_TIMEOUT_S
from octet.client.errors import Cancelled, DeadlineExceeded, OctetError
from octet.client.operator import Operator
from octet.client.records import Overview
from octet.clock import Clock, SystemClock
from octet.supervisor.signals import SignalPipe, Wakeup, signal_handlers
from octet.terminal import ONE_LINE, terminal_width, write_output

_HELP = f"""
Shows the current findings, and for each specialist a row with rates, queue, KV
blocks, latencies and targets, correctness and its floor, breaker and lane.
The view updates as things change. If the router is silent or gone, it shows the
age of the figures and keeps reconnecting. Without a terminal, or with --once, it
prints once as text; with --interval repeatedly.

  {KEY_HELP}

  octet top
  octet top --once
  octet top --json | jq '.troubles'"""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGTSTP)
_REDRAW_S = 0.5  # redraw this often, because ages are shown in seconds
_FIRST_WAIT_S, _MAX_WAIT_S = 0.5, 5.0
_SILENT_S = 15.0  # a stream without a message for this long is reopened: its connection may be dead
_KEY_SEQUENCE_S = 0.05  # time for the rest of a key's escape sequence
_KEY = re.compile(rb"[^\x1b]|\x1b(?=\x1b)|\x1b[^\x1b\[O]|\x1b[\[O][^\x40-\x7e]*[\x40-\x7e]", re.DOTALL)
_KEYS = {
    **{b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right", b"\x1b[D": "left"},
    **{b"\x1bOA": "up", b"\x1bOB": "down", b"\x1bOC": "right", b"\x1bOD": "left"},
    **{b"\r": "enter", b"\n": "enter", b"\x1b": "escape", b"\x04": "q"},
}
_MAX_SEQUENCE = 64


def add_top_command(commands: Commands) -> None:
    about = "show the whole ensemble live in the terminal"
    parser = cli.add_operator_command(commands, "top", about, _top, _HELP)
    add_flag(parser, "--once", "print it once, as text")
    about = "shortest time between updates; as text: print repeatedly"
    add_option(parser, "--interval", "SECONDS", about, parse_seconds)


def _top(arguments: argparse.Namespace) -> int:
    if arguments.once and arguments.interval is not None:
        raise ValueError("--once and --interval cannot be combined")
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") not in ("", "dumb", None)
    if arguments.json or arguments.once or not is_terminal:
        with cli.open_operator(arguments) as operator:
            return _print_overviews(operator, arguments)
    return _run_live(arguments)


def _print_overviews(operator: Operator, arguments: argparse.Namespace) -> int:
    """Print one overview, or one per interval until Ctrl-C or --timeout."""
    ends = None if arguments.timeout is None else time.monotonic() + arguments.timeout
    columns = terminal_width() if sys.stdout.isatty() else ONE_LINE
    while True:
        overview = operator.overview()
        text = plain_text(render_plain(ReceivedOverview(overview, 0.0), columns))
        cli.print_result(arguments, overview.to_dict(), text)
        if arguments.interval is None or (ends is not None and time.monotonic() + arguments.interval >= ends):
            return 0
        if not arguments.json:
            write_output("\n")
        time.sleep(arguments.interval)


def _run_live(arguments: argparse.Namespace) -> int:
    clock = SystemClock()
    ends = None if arguments.timeout is None else clock.now() + arguments.timeout
    without_timeout = argparse.Namespace(**{**vars(arguments), "timeout": None})
    keys = sys.stdin.fileno()
    with Wakeup() as wakeup, OverviewFeed(lambda: cli.open_operator(without_timeout), clock, wakeup.set) as feed:
        if feed.first(arguments.timeout or LOOKUP_TIMEOUT_S) is None:
            message = f"no answer from {arguments.address} within the time limit"
            raise DeadlineExceeded(message, code=grpc.StatusCode.DEADLINE_EXCEEDED)
        with SignalPipe(_SIGNALS) as signals, LiveView(keys, signals, wakeup, clock) as view:
            status = view.run(feed, arguments.interval or 0.0, ends)
    if status - 128 in (signal.SIGTERM, signal.SIGHUP):  # the terminal has been restored
        signal.signal(status - 128, signal.SIG_DFL)
        os.kill(os.getpid(), status - 128)
    return status


class OverviewFeed:
    """Receives overviews on its own thread while its `with` block runs, and calls `wake` on that thread after each
    change. Threads share the feed without a lock, because every field is replaced as a whole."""

    def __init__(self, connect: Callable[[], Operator], clock: Clock, wake: Callable[[], None]) -> None:
        self._connect = connect
        self._clock = clock
        self._wake = wake
        self._latest: tuple[Overview, float] | None = None  # the overview, and when it was received
        self._last_sign_of_life = clock.now()
        self._error: Exception | None = None  # the error of the last attempt; None while the stream is open
        self._problem = ""
        self._wait = _FIRST_WAIT_S  # seconds until the stream is opened again
        self._operator: Operator | None = None
        self._has_result = Event()
        self._stopping = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> "OverviewFeed":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._close()
        self._thread.join()

    def first(self, seconds: float) -> ReceivedOverview | None:
        """Return the first overview, or None if it does not arrive in time. Raises OctetError, OSError or ValueError if
        the first attempt fails."""
        if not self._has_result.wait(seconds):
            return None
        received = self.latest()
        if received is None and self._error is not None:
            raise self._error
        return received

    def latest(self) -> ReceivedOverview | None:
        if self._latest is None:
            return None
        overview, received_at = self._latest
        return ReceivedOverview(overview, self._clock.now() - received_at, self._problem)

    def reopen_if_silent(self) -> None:
        if not self._problem and self._clock.now() - self._last_sign_of_life > _SILENT_S:
            self._problem = f"reconnecting: no message for {_SILENT_S:g} s"
            self._close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._read_stream()
                self._fail(None)
            except (OctetError, OSError, ValueError) as error:
                self._fail(error)
            self._stopping.wait(self._wait)
            self._wait = min(2 * self._wait, _MAX_WAIT_S)

    def _read_stream(self) -> None:
        """Read one stream to its end. Raises OctetError, OSError or ValueError."""
        with self._connect() as operator:
            self._operator = operator
            self._last_sign_of_life = self._clock.now()
            if not self._stopping.is_set():
                for overview in operator.watch_overview():
                    self._receive(overview)

    def _receive(self, overview: Overview) -> None:
        self._last_sign_of_life = self._clock.now()
        self._latest, self._error, self._problem = (overview, self._last_sign_of_life), None, ""
        self._wait = _FIRST_WAIT_S
        self._has_result.set()
        self._wake()

    def _fail(self, error: Exception | None) -> None:
        """Record why the stream ended. Without an error, the router closed it."""
        if self._stopping.is_set():
            return
        reason = "the router closed the stream" if error is None else str(error).partition(";")[0]  # without advice
        self._error = error
        if not isinstance(error, Cancelled) or not self._problem:  # after the feed's own close, the problem is known
            self._problem = f"reconnecting: {reason}"
        self._has_result.set()
        self._wake()

    def _close(self) -> None:
        if self._operator is not None:
            self._operator.close()


class LiveView:
    """Controls the terminal inside its `with` block; waits for overviews, keys, signals and resizes, and draws."""

    def __init__(self, keys: int, signals: SignalPipe, wakeup: Wakeup, clock: Clock) -> None:
        """`keys` is the terminal's descriptor; `wakeup` is set for every new overview."""
        self._keys_fd = keys
        self._signals = signals
        self._wakeup = wakeup
        self._clock = clock
        self._keys = KeyParser()
        self._view = TopView()
        self._shown: ReceivedOverview | None = None
        self._updated_at = 0.0
        color_system: Any = None if os.environ.get("NO_COLOR") else "auto"
        self._console = Console(color_system=color_system, markup=False, highlight=False, emoji=False)
        self._saved: Any = None
        self._drawn: object = None  # None to draw everything next time

    def __enter__(self) -> "LiveView":
        """Switch to the alternate screen. Keys arrive unbuffered and without echo; Ctrl-C stays a signal."""
        self._saved = termios.tcgetattr(self._keys_fd)
        tty.setcbreak(self._keys_fd)
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # the terminal may be gone
            self._console.show_cursor(True)
            self._console.set_alt_screen(False)
        with suppress(termios.error):
            termios.tcsetattr(self._keys_fd, termios.TCSANOW, self._saved)

    def run(self, feed: OverviewFeed, interval: float, ends: float | None) -> int:
        """Run until the user quits or the clock reaches `ends`. `interval` is the time between updates, in seconds."""
        while ends is None or self._clock.now() < ends:
            feed.reopen_if_silent()
            latest, now = feed.latest(), self._clock.now()
            is_due = self._shown is None or now - self._updated_at >= interval
            if latest is not None and (is_due or latest.is_stale):
                self._shown, self._updated_at = latest, now
            if self._shown is not None:
                self._draw(self._shown)
            timeout = _KEY_SEQUENCE_S if self._keys.is_pending else _REDRAW_S
            ready, _, _ = select.select([self._keys_fd, self._signals.fd, self._wakeup.fd], [], [], timeout)
            self._wakeup.clear()
            result = self._handle_signals(self._signals.take())
            if result is None and self._keys_fd in ready:
                result = self._read_keys()
            elif self._keys.is_pending:
                self._press(self._keys.finish())
            if result is not None:
                return result
        return 0

    def _draw(self, received: ReceivedOverview) -> None:
        """Draw the overview, unless nothing has changed."""
        try:
            columns, height = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            columns, height = 0, 0
        self._console.size = ConsoleDimensions(columns or 80, height or 24)  # ignores COLUMNS and LINES
        lines = render_frame(received, self._view, *self._console.size)
        if (self._console.size, lines) != self._drawn:
            self._console.update_screen(Group(*lines))
            self._drawn = (self._console.size, lines)

    def _handle_signals(self, signals: list[signal.Signals]) -> int | None:
        for number in signals:
            if number is signal.SIGINT:
                return cli.EXIT_INTERRUPTED
            if number in (signal.SIGTERM, signal.SIGHUP):
                return 128 + number
            if number is signal.SIGTSTP:  # Ctrl-Z: restore the terminal, stop, and take it again when continued
                self.__exit__()
                with signal_handlers((signal.SIGTSTP,), signal.SIG_DFL):
                    os.kill(os.getpid(), signal.SIGTSTP)
                self.__enter__()
            self._drawn = None
        return None

    def _read_keys(self) -> int | None:
        try:
            raw = os.read(self._keys_fd, 4096)
        except OSError:  # the terminal is gone
            raw = b""
        return self._press(self._keys.push(raw)) if raw else cli.EXIT_PIPE_CLOSED

    def _press(self, keys: list[str]) -> int | None:
        views = () if self._shown is None else self._shown.overview.specialists
        for key in keys:
            if key == "q":
                return 0
            self._view = self._view.press(key, views)
        return None


class KeyParser:
    """Converts bytes of a terminal to keys. An escape sequence may arrive in parts; a lone escape is the escape key."""

    def __init__(self) -> None:
        self._pending = b""

    @property
    def is_pending(self) -> bool:
        return bool(self._pending)

    def push(self, raw: bytes) -> list[str]:
        """Return the keys that these bytes complete; unknown keys are left out."""
        self._pending += raw
        keys = []
        while found := _KEY.match(self._pending):
            self._pending = self._pending[found.end() :]
            printable = found[0].decode() if found[0].isascii() and found[0].decode().isprintable() else ""
            keys.append(_KEYS.get(found[0], printable))
        if len(self._pending) >= _MAX_SEQUENCE:
            self._pending = b""
        return [key for key in keys if key]

    def finish(self) -> list[str]:
        """Return the escape key if the pending bytes are a lone escape. Discard the pending bytes."""
        pending, self._pending = self._pending, b""
        return ["escape"] if pending == b"\x1b" else []
