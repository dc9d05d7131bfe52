"""What `octet top` shows, before any terminal."""

import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from octet.printable import cut, padded, printable, width
from octet.sdk.overview import Overview
from octet.top.frame import KEYS, frame, plain_lines
from octet.top.keys import Keys
from octet.top.state import FRESH_S, Known
from octet.top.text import painted, plain_text
from octet.top.view import SORTS, View
from octet.v1 import operator_pb2 as wire
from tests.octet.messages import HOSTILE, messages
from tests.octet.operate.windows import latency, overview, slo, specialist_view, trouble

_CODES = re.compile(r"\x1b\[[\d;]*m")


def known(message: wire.Overview | None = None, age: float = 0.0, trouble: str = "") -> Known:
    return Known(Overview.from_wire(message or overview()), age, trouble)


def text(found: Known, view: View | None = None, columns: int = 200, height: int = 40) -> str:
    return plain_text(frame(found, view or View(), columns, height))


def views(found: Known) -> Any:
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
    assert shown.splitlines()[-1] == KEYS


def test_what_is_wrong_stands_at_the_top_the_worst_first() -> None:
    many = [trouble(f"trouble {n}") for n in range(5)]
    lines = text(known(overview(troubles=many))).splitlines()
    assert [line.partition("  ")[0] for line in lines[1:4]] == [f"critical: trouble {n}" for n in range(3)]
    assert lines[3].endswith("(and 2 more)")
    short = text(known(overview(troubles=many)), height=12).splitlines()
    assert short[1].startswith("critical: trouble 0") and short[1].endswith("(and 4 more)")
    assert text(known(overview(troubles=[]))).splitlines()[1] == "nothing is wrong now"
    assert text(known(overview(troubles=[], headline="All well."))).splitlines()[1] == "All well."
    down = text(known(overview(troubles=[], store_trouble="the disk is full")))
    assert down.splitlines()[1] == "the store does not answer: the disk is full"


def test_with_nothing_but_notes_all_is_well_and_they_are_told() -> None:
    notes = [trouble(f"note {n}", severity=wire.Trouble.NOTE) for n in range(4)]
    found = known(overview(troubles=notes, headline="All well."))
    lines = text(found).splitlines()
    assert lines[1] == "All well." and lines[2].startswith("note: note 0") and lines[3].endswith("(and 2 more)")
    assert text(found, height=12).splitlines()[1] == "All well.  (and 4 to note)"
    one = known(overview(troubles=notes[:1], headline="All well."))
    shown = plain_text(plain_lines(one, 200)).splitlines()
    assert shown[1] == "All well." and shown[2].startswith("note: note 0")


def test_what_nobody_was_left_to_answer_and_what_was_not_measured_is_said() -> None:
    rates = wire.Rates(requests=4.5, refused=4.5, unserved=4.0)
    unmeasured = [
        wire.Objective(name="correctness", target=0.9, share=0.9, met=True),
        wire.Objective(name="ttft_p95", target=0.25, share=0.95, met=True),
    ]
    view = specialist_view("stl", rates=rates, slo=slo("stl", objectives=unmeasured))
    found = known(overview(specialists=[view]))
    shown = text(found, View(selected="stl", details=True))
    assert "4.5 refused (4.0 of them with nobody left to answer), 0 failed" in shown
    assert "objective correctness: - of 90.0%, not measured; burn -" in shown
    assert "objective ttft_p95: - of 250 ms, not measured; burn -" in shown


def test_a_narrow_terminal_gets_two_lines_a_specialist() -> None:
    lines = text(known(), columns=80).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "…" not in text(known(), columns=80), "all of it"
    number = next(n for n, line in enumerate(lines) if line.startswith("  stl "))
    assert "60.0%" in lines[number] and "200 ms/250 ms" in lines[number + 1] and "closed" in lines[number + 1]


def test_the_past_is_called_the_past() -> None:
    fresh, silent = text(known(age=FRESH_S)), text(known(age=12.4))
    assert "THE PAST" not in fresh and "old" not in fresh
    assert "THE PAST, 12 s old: the router has said nothing since" in silent and ", 12 s old" in silent.splitlines()[0]
    lost = text(known(age=1.0, trouble="trying again: nothing answers"))
    assert "THE PAST, 1 s old: trying again: nothing answers" in lost
    assert any("\x1b[32m" in painted(line, colour=True) for line in frame(known(), View(), 200, 40))
    assert not any("\x1b[32m" in painted(line, colour=True) for line in frame(known(age=60.0), View(), 200, 40))


def test_a_specialist_is_selected_and_told_of() -> None:
    found = known()
    view = View().pressed("down", views(found)).pressed("down", views(found))
    assert view.selected == "template" and view.pressed("down", views(found)) == view
    assert re.search(r"^> template ", text(found, view), re.M)
    opened = view.pressed("up", views(found)).pressed("enter", views(found))
    shown = text(found, opened)
    for words in (
        "stl: answers about stl",
        "a second: 4.5 requests, 4.0 answered, 0.5 refused, 0 failed, 0.3 spilled, 0 shadowed",
        "cache: 40.0% of the prompt tokens were found, usually 70.0%",
        "objective ttft_p95: 200 ms of 250 ms, kept; burn 5 min: 0.4, 1 h: -",
        "objective correctness: 85.0% of 90.0%, not kept; burn 5 min: 0.4",
        "breaker: closed, 97.0% of 120 passed, fallback debug",
        "lane 1: my-lora, serving, on 1 of 1 replicas",
        "replica stl-0: serving, 2 of 8 running, 3 of 64 waiting, 60 of 100 blocks used",
        "request r-1: refused in 0 ms, 4 s ago",
    ):
        assert words in shown, words
    assert "answers about" not in text(found, opened.pressed("enter", views(found)))
    assert "answers about" not in text(found, opened.pressed("escape", views(found)))


def test_rows_are_sorted_and_the_selection_stays() -> None:
    busy = specialist_view("busy", rates=wire.Rates(requests=9.0), slo=slo("busy", pass_rate=0.5))
    slow = specialist_view("slow", slo=slo("slow", ttft=latency(2.0)))
    found = known(overview(specialists=[specialist_view("calm"), busy, slow]))
    view, orders = View(selected="calm"), {}
    for _ in SORTS:
        names = re.findall(r"^[> ] (calm|busy|slow) ", text(found, view), re.M)
        orders[view.sort] = names
        assert re.search(r"^> calm ", text(found, view), re.M)
        view = view.pressed("s", views(found))
    assert view == View(selected="calm"), "once round"
    assert orders["as configured"] == ["calm", "busy", "slow"]
    assert (orders["requests"][0], orders["ttft"][0], orders["wrong answers"][0]) == ("busy", "slow", "busy")


def test_more_specialists_than_lines_are_scrolled() -> None:
    names = [f"s{n:02}" for n in range(40)]
    found = known(overview(*names))
    view = View()
    for _ in range(25):
        view = view.pressed("down", views(found))
    shown = text(found, view, height=20)
    assert len(shown.splitlines()) == 20 and re.search(r"^> s24 ", shown, re.M)
    assert re.search(r"\.\.\. and \d+ more", shown) and "s00" not in shown


def test_help_is_shown_and_goes() -> None:
    found = known()
    helped = View().pressed("?", views(found))
    assert "Every latency belongs to one specialist." in text(found, helped)
    assert text(found, helped.pressed("?", views(found))) == text(found)


@given(
    messages(wire.Overview),
    st.integers(1, 250),
    st.integers(1, 60),
    st.lists(st.sampled_from(["up", "down", "enter", "left", "right", "s", "?", "escape", "x"]), max_size=6),
    st.floats(0, 100),
    HOSTILE,
)
@settings(max_examples=60, deadline=None)
def test_whatever_comes_fits_and_none_of_it_is_an_order(
    message: wire.Overview, columns: int, height: int, keys: list[str], age: float, words: str
) -> None:
    found = known(message, age, words)
    view = View()
    for key in keys:
        view = view.pressed(key, views(found))
    lines = frame(found, view, columns, height)
    assert len(lines) == height
    for each in lines:
        raw = painted(each, colour=True)
        assert _CODES.sub("", raw).isprintable(), "only colours of our own"
        assert painted(each, colour=False).isprintable() and width(_CODES.sub("", raw)) <= columns
    assert plain_text(plain_lines(found, columns)).replace("\n", "").isprintable()


@given(st.text(), st.integers(0, 20), st.booleans())
def test_a_cell_is_as_wide_as_it_should_be(words: str, columns: int, right: bool) -> None:
    clean = printable(words)
    assert clean.isprintable() and len(clean) == len(words)
    assert width(padded(clean, columns, right=right)) == columns
    assert width(cut(clean, columns)) <= columns and (cut(clean, columns) == clean or width(clean) > columns)


KEYS_SENT = {b"q": "q", b"\x1b[A": "up", b"\x1bOB": "down", b"\x1b[C": "right", b"\r": "enter", b"?": "?", b"\x04": "q"}


@given(st.lists(st.sampled_from(sorted(KEYS_SENT))), st.data())
def test_keys_are_the_same_however_they_are_cut(sent: list[bytes], data: st.DataObject) -> None:
    raw = b"".join(sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=4)))
    keys, found = Keys(), []
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        found += keys.read(raw[start:end])
    assert found == [KEYS_SENT[each] for each in sent] and not keys.is_holding


@given(st.binary(max_size=200))
def test_no_bytes_are_too_much_for_the_keys(raw: bytes) -> None:
    keys = Keys()
    found = keys.read(raw) + keys.settle()
    assert all(each.isprintable() for each in found) and not keys.is_holding


def test_the_escape_key_is_one_that_nothing_follows() -> None:
    keys = Keys()
    assert keys.read(b"\x1b") == [] and keys.is_holding
    assert keys.settle() == ["escape"]
    assert keys.read(b"\x1b\x1b[A") == ["escape", "up"]
    assert keys.read(b"\x1b[6~q") == ["q"], "a key that means nothing"


def test_no_latency_belongs_to_all_of_them() -> None:
    """In the whole view a figure in seconds stands in a specialist's row, its details, or a trouble's sentence."""
    lines = text(known(overview(troubles=[], receipts=[]))).splitlines()
    rows = [line for line in lines if re.match(r"^[> ] (stl|template) ", line)]
    assert len(rows) == 2
    others = [line for line in lines if line not in rows]
    assert not [line for line in others if re.search(r"\d+(\.\d+)? m?s\b", line)]
