"""Tables fit the terminal and lose no content."""

import argparse
import os
import re
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.cli.arguments import parse_duration
from octet.terminal import DEFAULT_WIDTH, fold_text, format_age, format_duration, format_table

CELLS = st.text(max_size=150) | st.text("ab \x1b\n\u2028", max_size=60)


@given(st.integers(1, 10).flatmap(lambda n: st.lists(st.lists(CELLS, min_size=n, max_size=n), min_size=1, max_size=5)))
def test_table_fits_and_shows_every_character(rows: list[list[str]]) -> None:
    heading = [f"c{number}" for number in range(len(rows[0]))]
    text = format_table(heading, rows)
    lines = text.split("\n")
    assert all(len(line) <= DEFAULT_WIDTH for line in lines)
    assert all(letter.isprintable() for line in lines for letter in line)
    wanted = sorted("".join(letter for row in (heading, *rows) for cell in row for letter in (_seen(cell) or "-")))
    assert sorted(letter for line in lines for letter in line if not letter.isspace()) == wanted


def _seen(cell: str) -> str:
    return "".join(letter for letter in cell if letter.isprintable() and not letter.isspace())


def test_many_wide_columns_fit() -> None:
    text = format_table(["x"] * 10, [["word " * 20] * 10])
    assert max(map(len, text.split("\n"))) <= DEFAULT_WIDTH and text.count("word") == 200


@given(st.text("ab./- ", max_size=60), st.integers(6, 30))
def test_words_are_cut_only_if_longer_than_a_line(text: str, width: int) -> None:
    lines = fold_text(text, width)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert all(len(line) <= width for line in lines)
    for above, below in pairwise(lines):
        whole = re.search(r"[^ ./-]*[./-]*$", above)
        is_cut = above[-1] not in "./-" and below[0] not in " ./-" and above + below in text
        assert whole is not None and (not is_cut or len(whole[0]) == width), (above, below)


def test_words_are_kept_while_another_column_can_shrink() -> None:
    rows = [("unspecified/template.shadow_threshold", "0.5", "configuration", "no reason was given " * 5)]
    words = re.split(r"[\s./]+", format_table(("knob", "value", "set by", "why"), rows, width=80))
    assert {"unspecified", "template", "shadow_threshold", "configuration", "given"} <= set(words)


@pytest.mark.parametrize(("columns", "width"), [("200", 200), ("100", 100), ("40", 80)])
def test_a_table_is_as_wide_as_the_terminal(columns: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def widest() -> int:
        return max(map(len, format_table(("a", "b"), [("word " * 100, "word " * 100)]).split("\n")))

    monkeypatch.setitem(os.environ, "COLUMNS", columns)
    assert 110 < widest() <= DEFAULT_WIDTH, "COLUMNS must be ignored if stdout is a pipe"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert width - 10 < widest() <= width


def test_columns_line_up() -> None:
    assert format_table(("a", "bee"), [("longer", "x"), ("y", "")]) == "a       bee\nlonger  x\ny       -"


@given(st.floats(0, 1e9))
def test_duration_is_rounded_to_its_unit(seconds: float) -> None:
    number, unit = format_duration(seconds).split(" ")
    scale = {"s": 1, "min": 60, "h": 3600, "d": 86_400}[unit]
    assert abs(float(number) * scale - seconds) <= scale / 2 + 1e-6
    assert re.fullmatch(r"\d+", number)


def test_age_is_relative_to_now() -> None:
    assert format_age(1_000_000, 1_000_000 + 2 * 3_600_000) == "2 h" and format_age(0, 5) == ""
    assert format_age(2000, 1000) == "0 s", "another machine's clock may be ahead"
    assert int(format_age(1).split()[0]) > 19_000


@pytest.mark.parametrize(
    ("text", "seconds"), [("24h", 86_400), ("90m", 5400), ("7d", 604_800), ("1.5h", 5400), ("30", 30)]
)
def test_duration_is_parsed(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1h", "h", "1y", "nan", "1e9", "99999d", "1 h"])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="24h, 90m, 7d or 3600s"):
        parse_duration(text)
