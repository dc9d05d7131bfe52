"""A line is a line whatever is in it, and says whose request it is about."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.supervise.json_screen import JsonScreen
from octet.supervise.lines import MAX_BYTES, Lines, shown
from octet.supervise.outlet import Outlet
from octet.telemetry.handling import handling
from octet.telemetry.logs import JsonLines, LogSettings, TextLines, set_up

FORGED = "r-1\n2026-01-01 INFO octet router: all is well\x1b[2J"


@pytest.fixture
def restored() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before, level


def record(message: str, *, fails: BaseException | None = None, **extra: object) -> logging.LogRecord:
    info = None if fails is None else (type(fails), fails, None)
    made = logging.LogRecord("router.service", logging.ERROR, __file__, 1, "%s", (message,), info)
    made.__dict__.update(extra)
    return made


def test_a_line_has_the_ids_of_the_request_that_is_handled_or_those_it_was_given() -> None:
    with handling("r-1", "t" * 32):
        told = json.loads(JsonLines().format(record("it failed", fails=ValueError("no"))))
        said = TextLines("%(levelname)s %(name)s: %(message)s").format(record("it failed"))
        other = json.loads(JsonLines().format(record("x", request_id="r-2", trace_id="u" * 32)))
    assert told["request_id"] == "r-1" and told["trace_id"] == "t" * 32
    assert told["time"].endswith("Z") and told["level"] == "ERROR" and told["logger"] == "router.service"
    assert told["message"] == "it failed" and told["exception"] == "ValueError: no"
    assert said == f"ERROR router.service: it failed [request r-1] [trace {'t' * 32}]"
    assert (other["request_id"], other["trace_id"]) == ("r-2", "u" * 32)
    assert set(json.loads(JsonLines().format(record("x")))) == {"time", "level", "logger", "message"}


def test_nobody_forges_a_line() -> None:
    text = TextLines("%(message)s")
    with handling(FORGED):
        assert text.format(record(FORGED)).splitlines() == [text.format(record(FORGED))]
        assert "\x1b" not in text.format(record(FORGED))
    trace = text.format(record("x", fails=ValueError(FORGED))).splitlines()
    assert len(trace) == 3 and all(line.startswith("  ") for line in trace[1:])


@given(st.text(max_size=5000), st.text(max_size=5000), st.text(max_size=200))
def test_json_stays_one_object_a_line_through_the_supervisor_whatever_is_in_it(
    message: str, detail: str, request_id: str
) -> None:
    with handling(request_id):
        line = JsonLines().format(record(message, fails=ValueError(detail)))
    assert len(line) <= MAX_BYTES and "\n" not in line
    (passed,) = Lines().push(line.encode() + b"\n")
    told = json.loads(shown(passed))
    if len(message) <= 200:
        assert told["message"] == message


def test_the_supervisor_says_which_process_a_line_came_from(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+") as file:
        screen = JsonScreen(Outlet(file.fileno()), lambda: 0.0)
        screen.log("writer/1", JsonLines().format(record("ours")))
        screen.log("writer/1", "Fatal: {not ours")
        screen.log("router", '{"level": 1}')
        screen.log("router", "{}")
        screen.say("two\nlines")
        screen.ready("router", 7, 1.0)
        file.seek(0)
        told = [json.loads(line) for line in file]
    assert [(each["process"], each["message"]) for each in told] == [
        ("writer/1", "ours"),
        ("writer/1", "Fatal: {not ours"),
        ("router", '{"level": 1}'),
        ("router", "{}"),
        ("serve", "two"),
        ("serve", "lines"),
        ("router", "ready after 1.0 s, pid 7"),
    ]
    assert told[1]["time"] == "1970-01-01T00:00:00.000Z" and told[1]["level"] == "INFO"


@pytest.mark.usefixtures("restored")
def test_the_level_and_the_format_are_what_was_asked_for() -> None:
    stream = io.StringIO()
    set_up(LogSettings("json", "warning"), "%(message)s", stream)
    logging.getLogger("router.x").info("nobody wants to know")
    logging.getLogger("router.x").warning("somebody does")
    set_up(LogSettings("text", "debug"), "%(name)s %(message)s", stream)
    logging.getLogger("router.x").debug("everything")
    first, second = stream.getvalue().splitlines()
    assert json.loads(first)["message"] == "somebody does" and second == "router.x everything"
    assert sys.stderr not in [getattr(each, "stream", None) for each in logging.getLogger().handlers]
