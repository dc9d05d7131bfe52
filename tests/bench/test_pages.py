from pathlib import Path

import pytest

import bench.pages as pages
from bench.pages import Marker, MarkerRefused, figures, filled, main
from simulation.results import BenchRecord, RunMeter, write_result

RECORDS = [
    BenchRecord("router", "serial", "octet", "added p50", "ms", 1.0, 0.9, 1.25, 5),
    BenchRecord("router", "serial", "litellm", "added p50", "ms", 22.0, 20.0, 25.0, 5),
    BenchRecord("router", "at 100/s", "octet", "added p50", "ms", 2.0, 2.0, 2.0, 5),
    BenchRecord("router", "memory", "octet", "PSS", "MB", 100.0, 99.0, 101.0, 5),
]


def test_only_text_between_markers_is_written() -> None:
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
def test_a_malformed_marker_is_refused(words: str) -> None:
    with pytest.raises(MarkerRefused):
        filled(f"<!-- {words} -->\n<!-- end -->", lambda marker: "")


def test_other_comments_are_left_alone() -> None:
    page = "<!-- a remark for authors -->\nwords\n<!-- notes kv -->\nold\n<!-- end -->\n"
    assert filled(page, lambda marker: marker.kind) == page.replace("old", "notes")


def test_marker_of_unknown_kind_is_refused() -> None:
    with pytest.raises(MarkerRefused, match="an end marker without"):
        filled("<!-- figure kv -->\n<!-- end -->", lambda marker: "")


def test_table_has_a_line_per_case_and_a_column_per_system() -> None:
    assert figures(RECORDS, {"metric": "added*", "system": "litellm|octet"}).splitlines() == [
        "| case | figure | litellm | octet |",
        "|---|---|---:|---:|",
        "| serial | added p50, ms | 22 (20\u201325) | 1 (0.90\u20131.25) |",
        "| at 100/s | added p50, ms |  | 2 |",
    ]


def test_rows_by_case_have_a_column_for_each_metric() -> None:
    assert figures(RECORDS, {"system": "octet", "rows": "case"}).splitlines() == [
        "| case | added p50, ms | PSS, MB |",
        "|---|---:|---:|",
        "| serial | 1 (0.90\u20131.25) |  |",
        "| at 100/s | 2 |  |",
        "| memory |  | 100 (99\u2013101) |",
    ]


@pytest.mark.parametrize(
    "options", [{"case": "absent"}, {"colour": "red"}, {"system": "octet|sglang"}, {"rows": "case"}, {"rows": "unit"}]
)
def test_impossible_table_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(MarkerRefused):
        figures(RECORDS, options)


def test_the_pages_match_the_results() -> None:
    assert main(["--check"]) == 0


def test_result_with_the_name_of_another_bench_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_result(tmp_path / "router-peers.json", RunMeter().result("serve", "octet bench serve", []))
    (tmp_path / "page.md").write_text("<!-- origin router-peers -->\n<!-- end -->\n")
    for name in ("PAGES", "RESULTS"):
        monkeypatch.setattr(pages, name, tmp_path)
    with pytest.raises(SystemExit, match=r"router-peers\.json: the name must begin with the name of the bench, serve"):
        main(["--check"])
