from pathlib import Path

import pytest

from bench.pages.faults import Row, fault_table, read_findings
from bench.pages.figures import figures
from bench.pages.marker import Marker, MarkerRefused, filled
from bench.record import Record

RECORDS = [
    Record("router", "serial", "octet", "added p50", "ms", 1.0, 0.9, 1.25, 5),
    Record("router", "serial", "litellm", "added p50", "ms", 22.0, 20.0, 25.0, 5),
    Record("router", "at 100/s", "octet", "added p50", "ms", 2.0, 2.0, 2.0, 5),
    Record("router", "memory", "octet", "PSS", "MB", 100.0, 99.0, 101.0, 5),
]


def test_only_what_stands_between_markers_is_written() -> None:
    page = "# Title\n<!-- origin kv -->\nold\n<!-- end -->\nwords\n<!-- notes kv -->\n<!-- end -->\n"
    seen: list[Marker] = []

    def fill(marker: Marker) -> str:
        seen.append(marker)
        return marker.kind.upper()

    after = filled(page, fill)
    assert after == "# Title\n<!-- origin kv -->\nORIGIN\n<!-- end -->\nwords\n<!-- notes kv -->\nNOTES\n<!-- end -->\n"
    assert filled(after, fill) == after
    assert seen[0] == Marker("origin", "kv", {})


def test_a_marker_has_options_in_quotes() -> None:
    page = '<!-- figures router case="at *" metric=p50|p99 -->\n<!-- end -->'
    marker = Marker("figures", "router", {"case": "at *", "metric": "p50|p99"})
    assert filled(page, lambda found: str(found == marker)).splitlines()[1] == "True"


@pytest.mark.parametrize("words", ["figures one two", 'figures case="open'])
def test_a_marker_that_nobody_understands_is_refused(words: str) -> None:
    with pytest.raises(MarkerRefused):
        filled(f"<!-- {words} -->\n<!-- end -->", lambda marker: "")


def test_other_comments_are_left_alone() -> None:
    page = "<!-- a word to whoever writes here -->\nwords\n<!-- notes kv -->\nold\n<!-- end -->\n"
    assert filled(page, lambda marker: marker.kind) == page.replace("old", "notes")


def test_a_marker_of_no_kind_is_refused() -> None:
    with pytest.raises(MarkerRefused, match="an end without"):
        filled("<!-- figure kv -->\n<!-- end -->", lambda marker: "")


def test_a_line_a_case_and_a_column_a_system() -> None:
    assert figures(RECORDS, {"metric": "added*", "system": "litellm|octet"}).splitlines() == [
        "| case | figure | unit | litellm | octet |",
        "| --- | --- | --- | ---: | ---: |",
        "| serial | added p50 | ms | 22 (20 to 25) | 1 (0.90 to 1.25) |",
        "| at 100/s | added p50 | ms |  | 2 |",
    ]


@pytest.mark.parametrize("options", [{"case": "nobody"}, {"colour": "red"}, {"system": "octet|sglang"}])
def test_a_table_of_nothing_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(MarkerRefused):
        figures(RECORDS, options)


def test_a_fault_is_shown_with_what_was_seen_and_what_was_missed(tmp_path: Path) -> None:
    path = tmp_path / "faults.jsonl"
    path.write_text(
        '{"row": 1, "what": "back after", "figure": 3, "unit": "s", "bound": "< 2 s", "held": false}\n'
        '{"row": 1, "what": "back after", "figure": 0.5, "unit": "s", "bound": "< 2 s", "held": true}\n'
        '{"row": 2, "what": "noticed", "figure": 2, "unit": "s", "bound": "< 1.5 s", "held": false}\n'
    )
    rows = [Row(1, "kill -9", "< 2 s", ("a::b",)), Row(2, "hang", "< 1.5 s", ()), Row(3, "slow", "none", ())]
    table = fault_table(rows, read_findings(path)).splitlines()[2:]
    assert table[0] == "| 1 | kill -9 | < 2 s | back after: 0.50 s (wanted < 2 s) | `a::b` |"
    assert "noticed: 2 s (wanted < 1.5 s, **missed**)" in table[1]
    assert "held (no figure)" in table[2]
