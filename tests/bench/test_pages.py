import json
from dataclasses import asdict
from pathlib import Path

import pytest

import bench.pages as pages
from bench.pages import Marker, MarkerRefused, Row, fault_table, figures, filled, main, read_findings
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
    with pytest.raises(MarkerRefused, match="an end without"):
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


ROWS = [
    Row(1, "kill -9", "< 2 s", ("a::b",)),
    Row(2, "hang", "< 1.5 s", ("c::d", "whole.py")),
    Row(3, "slow", "none", ("e::f",)),
]
BACK = '{"row": 1, "what": "back", "figure": %s, "unit": "s", "bound": "%s", "held": %s}'


def seen(folder: Path, *lines: str) -> list[str]:
    """By row."""
    path = folder / "faults.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    return [
        line.removesuffix(" |").split(" | ")[3]
        for line in fault_table(ROWS, read_findings(path)).splitlines()[2 : 2 + len(ROWS)]
    ]


def test_a_fault_is_shown_with_its_figures(tmp_path: Path) -> None:
    path = tmp_path / "faults.jsonl"
    path.write_text(BACK % ("0.5", "< 2 s", "true") + '\n{"test": "a::b", "passed": true}\n')
    table = fault_table(ROWS, read_findings(path)).splitlines()
    assert table[2] == "| 1 | kill -9 | < 2 s | back: 0.50 s |"


def test_the_seed_of_drawn_trouble_is_shown(tmp_path: Path) -> None:
    lines = ('{"row": 1, "seed": 4711}', BACK % ("0.5", "< 2 s", "true"), '{"test": "a::b", "passed": true}')
    assert seen(tmp_path, *lines)[0] == "back: 0.50 s; seed 4711"


def test_a_row_that_did_not_run_is_not_shown_as_held(tmp_path: Path) -> None:
    assert seen(tmp_path) == ["**not run**"] * 3
    first, second, third = seen(tmp_path, BACK % ("1", "< 2 s", "true"), '{"test": "c::d[7]", "passed": true}')
    assert first == "back: 1 s; 1 of 1 tests **not run**"
    assert second == "1 of 2 tests **not run**"
    assert third == "**not run**"


@pytest.mark.parametrize("order", [1, -1])
def test_of_a_figure_that_was_measured_twice_the_worse_is_shown(tmp_path: Path, order: int) -> None:
    for values, bound, worse in (
        (["1", "true", "3", "false"], "< 2 s", "3 s (**missed**: < 2 s)"),
        (["0.5", "true", "1", "true"], "< 2 s", "1 s"),
        (["7", "true", "5", "true"], ">= 4 s", "5 s"),
    ):
        lines = [BACK % (values[at], bound, values[at + 1]) for at in (0, 2)]
        assert worse in seen(tmp_path, *lines[::order])[0]


def test_a_test_that_failed_once_did_not_pass(tmp_path: Path) -> None:
    tests = ['{"test": "whole.py::x", "passed": false}', '{"test": "whole.py::x", "passed": true}']
    assert "1 of 1 tests **failed**" in seen(tmp_path, *tests)[1]
    assert "1 of 1 tests **failed**" in seen(tmp_path, *tests[::-1])[1]


def of_a_run(command: str, *lines: str) -> tuple[str, ...]:
    """Ended as the suite ends it."""
    return (*lines, json.dumps({"run": asdict(RunMeter().result("faults", command, []))}))


def test_the_origin_of_each_row_is_shown_below_the_table(tmp_path: Path) -> None:
    path = tmp_path / "faults.jsonl"
    path.write_text("\n".join(of_a_run("python -m tests.faults --rows 1", '{"test": "a::b", "passed": true}')))
    (run,) = (each.result for each in read_findings(path) if each.result is not None)
    last = fault_table(ROWS, read_findings(path)).splitlines()[-1]
    assert last.startswith(f"- Rows 1: {run.date}, commit {run.machine.commit}, load {run.machine.load}. ")
    assert run.machine.cpu in last


def test_of_a_row_its_last_whole_run_counts_however_it_ended(tmp_path: Path) -> None:
    good = of_a_run("first", BACK % ("1", "< 2 s", "true"), '{"test": "a::b", "passed": true}')
    bad = of_a_run("second", BACK % ("3", "< 2 s", "false"), '{"test": "a::b", "passed": false}')
    cut = (BACK % ("0.1", "< 2 s", "true"),)
    assert seen(tmp_path, *good, *bad)[0] == "back: 3 s (**missed**: < 2 s); 1 of 1 tests **failed**"
    assert seen(tmp_path, *bad, *good)[0] == "back: 1 s"
    assert seen(tmp_path, *good, *cut)[0] == "back: 1 s", "an incomplete run does not count"


def test_the_pages_match_the_results() -> None:
    assert main(["--check"]) == 0


def test_result_with_the_name_of_another_bench_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_result(tmp_path / "router-peers.json", RunMeter().result("serve", "octet bench serve", []))
    (tmp_path / "page.md").write_text("<!-- origin router-peers -->\n<!-- end -->\n")
    for name in ("PAGES", "RESULTS"):
        monkeypatch.setattr(pages, name, tmp_path)
    with pytest.raises(SystemExit, match=r"router-peers\.json: its name must begin with its bench, serve"):
        main(["--check"])
