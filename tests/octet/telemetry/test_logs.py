"""A log record is one line, whatever it contains, and names its request."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.supervisor.console import JsonConsole, NonBlockingWriter
from octet.supervisor.process import MAX_LINE_BYTES, LineSplitter, printable_line
from octet.telemetry.logs import JsonLines, LogSettings, TextLines, set_up_logging
from octet.telemetry.requests import request_context

FORGED = "r-1\n2026-01-01 INFO octet router: all is well\x1b[2J"


@pytest.fixture
def restored() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before, level


def record(message: str, *, fails: BaseException | None = None, **extra: object) -> logging.LogRecord:
    info = None if fails is None else (type(fails), fails, None)
    made = logging.LogRecord("router.api.grpc", logging.ERROR, __file__, 1, "%s", (message,), info)
    made.__dict__.update(extra)
    return made


def test_line_has_the_ids_of_the_current_request_or_its_own() -> None:
    with request_context("r-1", "t" * 32):
        line = json.loads(JsonLines().format(record("it failed", fails=ValueError("no"))))
        said = TextLines("%(levelname)s %(name)s: %(message)s").format(record("it failed"))
        other = json.loads(JsonLines().format(record("x", request_id="r-2", trace_id="u" * 32)))
    assert line["request_id"] == "r-1" and line["trace_id"] == "t" * 32
    assert line["time"].endswith("Z") and line["level"] == "ERROR" and line["logger"] == "router.api.grpc"
    assert line["message"] == "it failed" and line["exception"] == "ValueError: no"
    assert said == f"ERROR router.api.grpc: it failed [request r-1] [trace {'t' * 32}]"
    assert (other["request_id"], other["trace_id"]) == ("r-2", "u" * 32)
    assert set(json.loads(JsonLines().format(record("x")))) == {"time", "level", "logger", "message"}


def test_log_lines_cannot_be_forged() -> None:
    text = TextLines("%(message)s")
    with request_context(FORGED):
        assert text.format(record(FORGED)).splitlines() == [text.format(record(FORGED))]
        assert "\x1b" not in text.format(record(FORGED))
    trace = text.format(record("x", fails=ValueError(FORGED))).splitlines()
    assert len(trace) == 3 and all(line.startswith("  ") for line in trace[1:])


@given(st.text(max_size=5000), st.text(max_size=5000), st.text(max_size=200))
def test_any_json_line_passes_the_supervisor_as_one_object(message: str, detail: str, request_id: str) -> None:
    with request_context(request_id):
        line = JsonLines().format(record(message, fails=ValueError(detail)))
    assert len(line) <= MAX_LINE_BYTES and "\n" not in line
    (passed,) = LineSplitter().push(line.encode() + b"\n")
    line = json.loads(printable_line(passed))
    if len(message) <= 200:
        assert line["message"] == message


def test_supervisor_adds_the_process_to_each_line(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+") as file:
        screen = JsonConsole(NonBlockingWriter(file.fileno()), lambda: 0.0)
        screen.log("writer/1", JsonLines().format(record("ours")))
        screen.log("writer/1", "Fatal: {not ours")
        screen.log("router", '{"level": 1}')
        screen.log("router", "{}")
        screen.say("two\nlines")
        screen.ready("router", 7, 1.0)
        file.seek(0)
        line = [json.loads(line) for line in file]
    assert [(each["process"], each["message"]) for each in line] == [
        ("writer/1", "ours"),
        ("writer/1", "Fatal: {not ours"),
        ("router", '{"level": 1}'),
        ("router", "{}"),
        ("serve", "two"),
        ("serve", "lines"),
        ("router", "ready after 1.0 s, pid 7"),
    ]
    assert line[1]["time"] == "1970-01-01T00:00:00.000Z" and line[1]["level"] == "INFO"


@pytest.mark.usefixtures("restored")
def test_level_and_format_are_applied() -> None:
    stream = io.StringIO()
    set_up_logging(LogSettings("json", "warning"), "%(message)s", stream)
    logging.getLogger("router.x").info("below the level")
    logging.getLogger("router.x").warning("at the level")
    set_up_logging(LogSettings("text", "debug"), "%(name)s %(message)s", stream)
    logging.getLogger("router.x").debug("everything")
    first, second = stream.getvalue().splitlines()
    assert json.loads(first)["message"] == "at the level" and second == "router.x everything"
    assert sys.stderr not in [getattr(each, "stream", None) for each in logging.getLogger().handlers]
