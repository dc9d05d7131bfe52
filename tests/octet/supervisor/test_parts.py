"""Parts of the supervisor, without processes: backoff, lines, status messages, console."""

import itertools
import json
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.backoff import Backoff, BackoffDelays
from octet.clock import ManualClock
from octet.rpc.memory import MemoryKills
from octet.supervisor.console import LiveConsole, NonBlockingWriter
from octet.supervisor.process import (
    PREVIOUS_END_VARIABLE,
    LineSplitter,
    ProcessEnd,
    ProcessSpec,
    StatusReporter,
    parse_status,
    printable_line,
)


@given(
    lives=st.lists(st.tuples(st.booleans(), st.floats(0, 100)), min_size=1, max_size=40),
    draws=st.floats(0, 1, exclude_max=True),
)
def test_delays_double_up_to_a_limit_and_reset_when_healthy(lives: Sequence[tuple[bool, float]], draws: float) -> None:
    delays, clock = BackoffDelays(), ManualClock()
    backoff = Backoff(clock, lambda: draws)
    in_a_row = 0
    for ready, seconds in lives:
        if ready:
            backoff.mark_ready()
        began = clock.now()
        clock.sleep(seconds)
        in_a_row = 1 if ready and clock.now() - began >= 30 else in_a_row + 1
        longest = min(30.0, 0.2 * 2 ** (in_a_row - 1))
        waited = backoff.next_delay()
        assert longest * (1 - delays.spread) <= waited <= longest <= 30
        assert backoff.num_failures == in_a_row
        clock.sleep(waited)


def test_time_before_being_ready_is_not_health() -> None:
    clock = ManualClock()
    backoff = Backoff(clock, lambda: 0.0)
    for expected in (0.2, 0.4, 0.8):
        clock.sleep(1000)
        assert backoff.next_delay() == pytest.approx(expected)


@given(data=st.binary(max_size=400), cuts=st.lists(st.integers(0, 400), max_size=12), limit=st.integers(4, 50))
def test_lines_do_not_depend_on_the_chunks(data: bytes, cuts: list[int], limit: int) -> None:
    at_once, in_pieces = LineSplitter(limit), LineSplitter(limit)
    whole = at_once.push(data) + at_once.finish()
    borders = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [line for a, b in itertools.pairwise(borders) for line in in_pieces.push(data[a:b])]
    assert pieces + in_pieces.finish() == whole
    assert all(len(line) <= limit for line in whole)
    assert b"".join(whole) == data.replace(b"\n", b"")


@given(text=st.text(max_size=200), limit=st.integers(4, 20))
def test_no_character_is_split(text: str, limit: int) -> None:
    lines = LineSplitter(limit)
    whole = lines.push(text.encode()) + lines.finish()
    assert "".join(line.decode() for line in whole) == text.replace("\n", "")


@given(line=st.binary(max_size=100))
def test_printable_line_has_no_control_characters(line: bytes) -> None:
    assert all(character.isprintable() or character == "\t" for character in printable_line(line))


@given(line=st.binary(max_size=60))
def test_invalid_status_messages_are_ignored(line: bytes) -> None:
    assert parse_status(line) is None or json.loads(line)


@given(what=st.text(max_size=400), done=st.integers(0, 1 << 40), total=st.integers(0, 1 << 40))
def test_status_messages_arrive_whole(what: str, done: int, total: int) -> None:
    reading, writing = os.pipe()
    try:
        status = StatusReporter(writing)
        status.progress(what, done, total)
        status.progress(what, done, total)
        status.alive()
        status.ready(what)
        received = [parse_status(line) for line in os.read(reading, 1 << 16).splitlines()]
    finally:
        os.close(reading)
        os.close(writing)
    assert received == [{"progress": [what[:300], done, total]}, {"alive": True}, {"ready": what[:300]}]


def test_full_status_pipe_does_not_block() -> None:
    reading, writing = os.pipe()
    try:
        status = StatusReporter(writing)
        for _ in range(100_000):
            status.alive()
        os.close(reading)
        status.alive()
    finally:
        os.close(writing)


def test_status_reporter_without_a_supervisor_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCTET_STATUS_FD", raising=False)
    status = StatusReporter.from_environment()
    status.ready("x")
    status.alive()
    status.progress("x", 1, 2)


def test_process_spec_is_fork_or_command() -> None:
    with pytest.raises(ValueError, match="exactly one of `fork` and `command`"):
        ProcessSpec("nothing")
    with pytest.raises(ValueError, match="exactly one of `fork` and `command`"):
        ProcessSpec("both", fork=lambda _: 0, command=("true",))


class FakeTerminal(NonBlockingWriter):
    """A terminal that keeps the text it would show."""

    def __init__(self) -> None:
        self._written = ""

    def write(self, text: str) -> bool:
        self._written += text
        return True

    def seen(self) -> list[str]:
        lines, row = [""], 0
        for token in re.findall(r"\x1b\[\d[A-Z]|\n|\r|[^\x1b\r\n]+", self._written):
            if token == "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif token == "\x1b[1A":
                row -= 1
            elif token == "\x1b[2K":
                lines[row] = ""
            elif token != "\r":
                lines[row] += token
        return lines


EVENTS = st.one_of(
    st.tuples(st.just("log"), st.sampled_from("abc"), st.text("xyz ", min_size=1, max_size=60)),
    st.tuples(st.just("progress"), st.sampled_from("abc"), st.text("xyz", min_size=1, max_size=60)),
    st.tuples(st.just("ready"), st.sampled_from("abc"), st.just("")),
)


@given(events=st.lists(EVENTS, max_size=15), rows=st.integers(3, 10))
def test_rows_stay_below_the_log_lines(events: list[tuple[str, str, str]], rows: int) -> None:
    glass = FakeTerminal()
    screen = LiveConsole(glass, ["a", "b", "c"], lambda: os.terminal_size((40, rows)))
    logged = []
    for kind, name, text in events:
        if kind == "log":
            screen.log(name, text)
            logged.append(f"{name} | {text}")
        elif kind == "progress":
            screen.progress(name, text, 1, 2)
        else:
            screen.ready(name, 7, 1.0)
        seen = glass.seen()
        assert list(seen[: len(logged)]) == logged
        assert len(seen) - 1 - len(logged) == min(3, max(1, rows - 2))
        assert all(len(line) < 40 for line in seen[len(logged) :])
    screen.settle()
    assert [line for line in glass.seen() if line] == logged


@pytest.mark.parametrize(
    ("status", "said", "ran_out", "kind", "text"),
    [
        (signal.SIGSEGV, "loading", False, "killed", "killed by SIGSEGV"),
        (signal.SIGKILL, "", False, "killed", "killed by SIGKILL"),
        (signal.SIGKILL, "", True, "out_of_memory", "out of memory: killed by the kernel"),
        (signal.SIGTERM, "", True, "killed", "killed by SIGTERM"),
        (1 << 8, "ValueError: no\tmodel", False, "exited", "exit code 1: ValueError: no model"),
        (1 << 8, "MemoryError", False, "out_of_memory", "exit code 1: MemoryError"),
        (0, "", False, "exited", "exit code 0"),
    ],
)
def test_end_of_a_process_is_described(status: int, said: str, ran_out: bool, kind: str, text: str) -> None:
    end = ProcessEnd.from_status(status, said, ran_out_of_memory=ran_out)
    assert (end.kind, end.text) == (kind, text)


def test_ends_are_numbered_without_failed_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    first, failed = ProcessEnd("killed", "a").follow(None), ProcessEnd("exited", "b")
    last = ProcessEnd("hung", "c").follow(first.add_failed_start(failed).add_failed_start(failed))
    assert (first.number, last.number) == (1, 2)
    monkeypatch.setenv(PREVIOUS_END_VARIABLE, json.dumps(asdict(last)))
    assert ProcessEnd.from_environment() == last


def test_memory_kill_is_attributed_to_one_process() -> None:
    """Two processes run since the same time. The kernel kills one of them, and later an operator kills the other."""
    num_kills = 3
    kills = MemoryKills(lambda: num_kills)
    assert not kills.attribute(3), "kills before the supervisor's start"
    num_kills = 4
    assert kills.attribute(3) and not kills.attribute(3)
    num_kills = 6
    assert not kills.attribute(6), "kills before the process's start"
    assert kills.attribute(4) and kills.attribute(4) and not kills.attribute(4)


@pytest.mark.parametrize("given", ["", "{", "[]", '{"kind": 1, "text": "x"}', '{"kind": "", "text": "", "number": -1}'])
def test_unreadable_end_is_none(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREVIOUS_END_VARIABLE, given)
    assert ProcessEnd.from_environment() is None and PREVIOUS_END_VARIABLE not in os.environ
