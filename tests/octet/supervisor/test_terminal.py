"""A supervisor in a real terminal: the rows that it draws, and what happens when the terminal is closed."""

import os
import pty
import select
import sys
import time
from pathlib import Path

from tests.octet.supervisor.test_supervisor import ROOT, children_of, is_alive, kill_all
from tests.patience import PATIENCE


def at_terminal(folder: Path) -> tuple[int, int]:
    """Start a supervisor in a terminal. Return its process id and the other end of the terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-m", "tests.octet.supervisor.processes", "steady", str(folder)])  # noqa: S606
    return pid, terminal


def read_until(terminal: int, words: bytes) -> bytes:
    seen, end = b"", time.monotonic() + PATIENCE
    while words not in seen:
        readable, _, _ = select.select([terminal], [], [], max(0.0, end - time.monotonic()))
        assert readable, f"no {words!r} in {seen!r}"
        seen += os.read(terminal, 4096)
    return seen


def ended(pid: int, seconds: float) -> int:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    raise AssertionError("the process has not ended")


def test_rows_are_drawn_and_a_closed_terminal_ends_the_supervisor(tmp_path: Path) -> None:
    pid, terminal = at_terminal(tmp_path)
    children: list[int] = []
    try:
        seen = read_until(terminal, b"pids: ")
        assert b"back  | starting" in seen
        assert b"[" + b"." * 24 + b"] loading" in seen
        assert b"front | ready after" in seen
        children = children_of(pid)
        assert len(children) == 2
        os.close(terminal)
        ended(pid, PATIENCE)
        assert not any(map(is_alive, children))
        events = (tmp_path / "events").read_text().splitlines()
        assert events[-2:] == ["back asked to stop", "back ended"] and "front reloads" not in events
    finally:
        kill_all([*children, pid])


def test_the_interrupt_key_reaches_the_supervisor_alone(tmp_path: Path) -> None:
    pid, terminal = at_terminal(tmp_path)
    try:
        read_until(terminal, b"pids: ")
        os.write(terminal, b"\x03")
        read_until(terminal, b"Shutting down: finishing running requests")
        assert ended(pid, PATIENCE) == 0
        events = (tmp_path / "events").read_text().splitlines()
        assert events[2:] == ["front asked to stop", "front ended", "back asked to stop", "back ended"]
    finally:
        os.close(terminal)
        kill_all([pid])
