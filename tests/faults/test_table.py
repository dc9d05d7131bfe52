import json
from dataclasses import asdict
from pathlib import Path

import pytest

from simulation.results import RunMeter
from tests.faults.rows import Row
from tests.faults.table import fault_table, read_findings

ROWS = [
    Row(91, "kill -9", "< 2 s", ("a::b",)),
    Row(92, "hang", "< 1.5 s", ("c::d", "whole.py")),
    Row(93, "slow", "none", ("e::f",)),
]
BACK = '{"row": 91, "what": "back", "figure": %s, "unit": "s", "bound": "%s", "held": %s}'


def seen(folder: Path, *lines: str) -> list[str]:
    """Return the result column of the table made from these lines, one string per row."""
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
    assert table[2] == "| 91 | kill -9 | < 2 s | back: 0.50 s |"


def test_the_seed_of_drawn_trouble_is_shown(tmp_path: Path) -> None:
    lines = ('{"row": 91, "seed": 4711}', BACK % ("0.5", "< 2 s", "true"), '{"test": "a::b", "passed": true}')
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
    """Return the lines of a complete run: `lines`, and the line that ends a run."""
    return (*lines, json.dumps({"run": asdict(RunMeter().result("faults", command, []))}))


def test_the_origin_of_each_row_is_shown_below_the_table(tmp_path: Path) -> None:
    path = tmp_path / "faults.jsonl"
    path.write_text("\n".join(of_a_run("python -m tests.faults --rows 91", '{"test": "a::b", "passed": true}')))
    (run,) = (each.result for each in read_findings(path) if each.result is not None)
    last = fault_table(ROWS, read_findings(path)).splitlines()[-1]
    assert last.startswith(f"- Row 91: {run.date}, commit {run.machine.commit}, load {run.machine.load}. ")
    assert run.machine.cpu in last


def test_of_a_row_its_last_whole_run_counts_however_it_ended(tmp_path: Path) -> None:
    good = of_a_run("first", BACK % ("1", "< 2 s", "true"), '{"test": "a::b", "passed": true}')
    bad = of_a_run("second", BACK % ("3", "< 2 s", "false"), '{"test": "a::b", "passed": false}')
    cut = (BACK % ("0.1", "< 2 s", "true"),)
    assert seen(tmp_path, *good, *bad)[0] == "back: 3 s (**missed**: < 2 s); 1 of 1 tests **failed**"
    assert seen(tmp_path, *bad, *good)[0] == "back: 1 s"
    assert seen(tmp_path, *good, *cut)[0] == "back: 1 s", "an interrupted run must not count"
