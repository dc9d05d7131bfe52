"""A command in a terminal of its own, and the keys typed into it."""

import codecs
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[4]
CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"
_START = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from octet.cli import main
sys.exit(main(sys.argv[1:]))
"""
_PRESSES, _PATIENCE_S = 30, 10.0
_BRACKETS = re.compile(r"\x1b\[\?2004[hl]\r?")
"""Readline's bracketed-paste sequences."""


class Terminal:
    def __init__(self, master: int, running: "subprocess.Popen[bytes]") -> None:
        self._master = master
        self._running = running
        self._letters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._unread = ""
        self.seen = ""

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def expect(self, text: str, seconds: float = PATIENCE) -> str:
        """Wait until the text appears. Return all output up to it."""
        end = time.monotonic() + seconds
        while text not in self._unread:
            assert time.monotonic() < end, f"no {text!r} in {self.seen!r}"
            self._read(0.05)
        before, _, self._unread = self._unread.partition(text)
        return before + text

    def press(self, key: str, until: str) -> None:
        """Press the key repeatedly until the text appears. Python can miss a signal while it handles the previous
        one."""
        for _ in range(_PRESSES):
            self.type(key)
            with suppress(AssertionError):
                self.expect(until, _PATIENCE_S)
                return
        raise AssertionError(f"no {until!r} in {self.seen!r}")

    def status(self, seconds: float = PATIENCE) -> int:
        """Wait until the command ends; return its exit status."""
        end = time.monotonic() + seconds
        while self._running.poll() is None:
            assert time.monotonic() < end, f"still running: {self.seen!r}"
            self._read(0.05)
        while self._read(0.05):
            pass
        return int(self._running.returncode)

    @property
    def is_running(self) -> bool:
        return self._running.poll() is None

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], seconds)
        if not ready:
            return False
        try:
            received = self._letters.decode(os.read(self._master, 65536))
        except OSError:  # The other end of the terminal is closed.
            return False
        self._unread = _BRACKETS.sub("", self._unread + received)
        self.seen += received
        return bool(received)


@contextmanager
def in_terminal(*arguments: str, env: Mapping[str, str] | None = None, program: str = _START) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    around = {"TERM": "xterm", "INPUTRC": "/dev/null", **(env or {})}
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", *around)}
    running = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env={**kept, **around},
    )
    os.close(slave)
    try:
        yield Terminal(master, running)
    finally:
        running.kill()
        running.wait()
        os.close(master)
