"""The text of `octet top`, without a terminal."""

import re
from io import StringIO
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from octet.cli.top import KeyParser
from octet.cli.top_view import (
    FRESH_SECONDS,
    GOOD,
    KEY_HELP,
    SORT_KEYS,
    ReceivedOverview,
    TopView,
    plain_text,
    render_frame,
    render_plain,
)
from octet.client.records import Overview
from octet.v1 import operator_pb2 as wire
from tests.octet.cli.operate.scripted_router import latency, overview, slo, specialist_view, trouble
from tests.octet.messages import HOSTILE, messages

_CODES = re.compile(r"\x1b\[[\d;]*m")


def known(message: wire.Overview | None = None, age: float = 0.0, trouble: str = "") -> ReceivedOverview:
    return ReceivedOverview(Overview.from_wire(message or overview()), age, trouble)


def text(found: ReceivedOverview, view: TopView | None = None, columns: int = 200, height: int = 40) -> str:
    return plain_text(render_frame(found, view or TopView(), columns, height))


def painted(line: Text) -> str:
    """Return the line as the terminal receives it."""
    console = Console(file=StringIO(), force_terminal=True, color_system="standard", width=1000)
    with console.capture() as capture:
        console.print(line, end="", soft_wrap=True)
    return capture.get()


def is_green(line: Text) -> bool:
    return GOOD in (line.style, *(span.style for span in line.spans))


def views(found: ReceivedOverview) -> Any:
    return found.overview.specialists


def test_a_row_has_every_figure_beside_its_target() -> None:
    shown = text(known())
    assert "critical: stl refuses requests  for 2 min  runbook: capacity" in shown
    (row,) = re.findall(r"^  stl .*$", shown, re.M)
    figures = row.split()
    assert figures[:9] == ["stl", "4.5", "0.5", "0", "0.3", "312", "3", "2", "60.0%"]
    assert "200 ms/250 ms" in row and "22 ms" in row and "100 ms" in row and "85.0%/90.0%" in row
    assert figures[-2:] == ["closed", "my-lora"]
    heading = next(line for line in shown.splitlines() if "specialist" in line)
    names = (
        "req/s",
        "refused",
        "queue",
        "running",
        "kv",
        "ttft p95",
        "itl p95",
        "first p95",
        "correct",
        "breaker",
    )
    assert [heading.index(name) for name in names] == sorted(heading.index(name) for name in names)
    assert shown.splitlines()[-1] == KEY_HELP


def test_findings_are_at_the_top_worst_first() -> None:
    many = [trouble(f"trouble {n}") for n in range(5)]
    lines = text(known(overview(troubles=many))).splitlines()
    assert [line.partition("  ")[0] for line in lines[1:4]] == [f"critical: trouble {n}" for n in range(3)]
    assert lines[3].endswith("(and 2 more)")
    short = text(known(overview(troubles=many)), height=12).splitlines()
    assert short[1].startswith("critical: trouble 0") and short[1].endswith("(and 4 more)")
    assert text(known(overview(troubles=[]))).splitlines()[1] == "no problems"
    assert text(known(overview(troubles=[], headline="All well."))).splitlines()[1] == "All well."
    down = text(known(overview(troubles=[], store_trouble="the disk is full")))
    assert down.splitlines()[1] == "the store is unavailable: the disk is full"


def test_notes_do_not_replace_the_headline() -> None:
    notes = [trouble(f"note {n}", severity=wire.Trouble.NOTE) for n in range(4)]
    found = known(overview(troubles=notes, headline="All well."))
    lines = text(found).splitlines()
    assert lines[1] == "All well." and lines[2].startswith("note: note 0") and lines[3].endswith("(and 2 more)")
    assert text(found, height=12).splitlines()[1] == "All well.  (and 4 notes)"
    one = known(overview(troubles=notes[:1], headline="All well."))
    shown = plain_text(render_plain(one, 200)).splitlines()
    assert shown[1] == "All well." and shown[2].startswith("note: note 0")


def test_unserved_requests_and_unmeasured_objectives_are_shown() -> None:
    rates = wire.Rates(requests=4.5, refused=4.5, unserved=4.0)
    unmeasured = [
        wire.Objective(name="correctness", target=0.9, share=0.9, met=True),
        wire.Objective(name="ttft_p95", target=0.25, share=0.95, met=True),
    ]
    view = specialist_view("stl", rates=rates, slo=slo("stl", objectives=unmeasured))
    found = known(overview(specialists=[view]))
    shown = text(found, TopView(selected="stl", details=True))
    assert "4.5 refused (4.0 of them with no specialist left), 0 failed" in shown
    assert "objective correctness: - of 90.0%, not measured; burn -" in shown
    assert "objective ttft_p95: - of 250 ms, not measured; burn -" in shown


def test_narrow_terminal_shows_two_lines_per_specialist() -> None:
    lines = text(known(), columns=80).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "…" not in text(known(), columns=80), "text was cut"
    number = next(n for n, line in enumerate(lines) if line.startswith("  stl "))
    assert "60.0%" in lines[number] and "200 ms/250 ms" in lines[number + 1] and "closed" in lines[number + 1]


def test_stale_overview_is_marked() -> None:
    fresh, silent = text(known(age=FRESH_SECONDS)), text(known(age=12.4))
    assert "STALE" not in fresh and "old" not in fresh
    assert "STALE, 12 s old: the router has sent nothing since" in silent and ", 12 s old" in silent.splitlines()[0]
    lost = text(known(age=1.0, trouble="trying again: nothing answers"))
    assert "STALE, 1 s old: trying again: nothing answers" in lost
    assert any(is_green(line) for line in render_frame(known(), TopView(), 200, 40))
    assert not any(is_green(line) for line in render_frame(known(age=60.0), TopView(), 200, 40))


def test_selected_specialist_shows_details() -> None:
    found = known()
    view = TopView().press("down", views(found)).press("down", views(found))
    assert view.selected == "template" and view.press("down", views(found)) == view
    assert re.search(r"^> template ", text(found, view), re.M)
    opened = view.press("up", views(found)).press("enter", views(found))
    shown = text(found, opened)
    for words in (
        "stl: answers about stl",
        "per second: 4.5 requests, 4.0 answered, 0.5 refused, 0 failed, 0.3 spilled, 0 shadowed",
        "cache: 40.0% of prompt tokens reused, usually 70.0%",
        "objective ttft_p95: 200 ms of 250 ms, met; burn 5 min: 0.4, 1 h: -",
        "objective correctness: 85.0% of 90.0%, missed; burn 5 min: 0.4",
        "breaker: closed, 97.0% of 120 passed, fallback debug",
        "lane 1: my-lora, serving, on 1 of 1 replicas",
        "replica stl-0: serving, 2 of 8 running, 3 of 64 waiting, 60 of 100 blocks used",
        "request r-1: refused in 0 ms, 4 s ago",
    ):
        assert words in shown, words
    assert "answers about" not in text(found, opened.press("enter", views(found)))
    assert "answers about" not in text(found, opened.press("escape", views(found)))


def test_rows_are_sorted_and_the_selection_stays() -> None:
    busy = specialist_view("busy", rates=wire.Rates(requests=9.0), slo=slo("busy", pass_rate=0.5))
    slow = specialist_view("slow", slo=slo("slow", ttft=latency(2.0)))
    found = known(overview(specialists=[specialist_view("calm"), busy, slow]))
    view, orders = TopView(selected="calm"), {}
    for _ in SORT_KEYS:
        names = re.findall(r"^[> ] (calm|busy|slow) ", text(found, view), re.M)
        orders[view.sort] = names
        assert re.search(r"^> calm ", text(found, view), re.M)
        view = view.press("s", views(found))
    assert view == TopView(selected="calm"), "the last key must lead back to the first sort order"
    assert orders["as configured"] == ["calm", "busy", "slow"]
    assert (orders["requests"][0], orders["ttft"][0], orders["wrong answers"][0]) == ("busy", "slow", "busy")


def test_more_specialists_than_lines_are_scrolled() -> None:
    names = [f"s{n:02}" for n in range(40)]
    found = known(overview(*names))
    view = TopView()
    for _ in range(25):
        view = view.press("down", views(found))
    shown = text(found, view, height=20)
    assert len(shown.splitlines()) == 20 and re.search(r"^> s24 ", shown, re.M)
    assert re.search(r"\.\.\. and \d+ more", shown) and "s00" not in shown


def test_help_is_shown_and_hidden() -> None:
    found = known()
    helped = TopView().press("?", views(found))
    assert "Every latency belongs to one specialist." in text(found, helped)
    assert text(found, helped.press("?", views(found))) == text(found)


@given(
    messages(wire.Overview),
    st.integers(1, 250),
    st.integers(1, 60),
    st.lists(st.sampled_from(["up", "down", "enter", "left", "right", "s", "?", "escape", "x"]), max_size=6),
    st.floats(0, 100),
    HOSTILE,
)
@settings(max_examples=60, deadline=None)
def test_any_overview_fits_without_control_characters(
    message: wire.Overview, columns: int, height: int, keys: list[str], age: float, words: str
) -> None:
    found = known(message, age, words)
    view = TopView()
    for key in keys:
        view = view.press(key, views(found))
    lines = render_frame(found, view, columns, height)
    assert len(lines) == height
    for each in lines:
        assert each.plain.isprintable() and each.cell_len <= columns
        assert _CODES.sub("", painted(each)).isprintable(), "only the colours of `octet top` may be control sequences"
    assert plain_text(render_plain(found, columns)).replace("\n", "").isprintable()


KEYS_SENT = {b"q": "q", b"\x1b[A": "up", b"\x1bOB": "down", b"\x1b[C": "right", b"\r": "enter", b"?": "?", b"\x04": "q"}


@given(st.lists(st.sampled_from(sorted(KEYS_SENT))), st.data())
def test_keys_are_parsed_across_any_split(sent: list[bytes], data: st.DataObject) -> None:
    raw = b"".join(sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=4)))
    keys, found = KeyParser(), []
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        found += keys.push(raw[start:end])
    assert found == [KEYS_SENT[each] for each in sent] and not keys.is_pending


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed(raw: bytes) -> None:
    keys = KeyParser()
    found = keys.push(raw) + keys.finish()
    assert all(each.isprintable() for each in found) and not keys.is_pending


def test_lone_escape_is_the_escape_key() -> None:
    keys = KeyParser()
    assert keys.push(b"\x1b") == [] and keys.is_pending
    assert keys.finish() == ["escape"]
    assert keys.push(b"\x1b\x1b[A") == ["escape", "up"]
    assert keys.push(b"\x1b[6~q") == ["q"], "an unknown key must be ignored"


def test_no_latency_of_the_whole_ensemble() -> None:
    """If there are no problems to report, only the rows of specialists show latencies."""
    lines = text(known(overview(troubles=[], receipts=[]))).splitlines()
    rows = [line for line in lines if re.match(r"^[> ] (stl|template) ", line)]
    assert len(rows) == 2
    others = [line for line in lines if line not in rows]
    assert not [line for line in others if re.search(r"\d+(\.\d+)? m?s\b", line)]
