"""Every row of the table exists, and so does every test that it names."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.__main__ import PLUGIN, nodes_of
from tests.faults.figures import VARIABLE
from tests.faults.rows import ROOT, ROWS, Row, names_here, names_in


def test_there_are_thirty_rows() -> None:
    assert [row.number for row in ROWS] == list(range(1, 31))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.number))
def test_every_test_that_a_row_names_exists(row: Row) -> None:
    assert row.tests
    assert len(set(row.tests)) == len(row.tests)
    for name in row.tests:
        file, _, test = name.partition("::")
        assert (ROOT / file).is_file(), name
        assert not test or test in names_in(ROOT / file), name


def test_every_test_named_for_a_row_belongs_to_it() -> None:
    numbers = {int(number) for name in names_here() for number in re.findall(r"::test_(\d+)_", name)}
    assert numbers <= {row.number for row in ROWS} and 17 in numbers


def test_the_tests_of_selected_rows_are_listed_once() -> None:
    some = nodes_of([18, 15])
    assert len(set(some)) == len(some)
    assert set(some) == {test for row in ROWS if row.number in (15, 18) for test in row.tests}
    assert {test.partition("::")[0] for test in nodes_of(list(range(1, 31)))} == {
        test.partition("::")[0] for row in ROWS for test in row.tests
    }


def test_passed_and_failed_tests_are_recorded_and_skipped_ones_are_not(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\ndef test_good(): pass\ndef test_bad(): assert 0\ndef test_none(): pytest.skip()\n"
        "@pytest.fixture\ndef broken(): assert 0\ndef test_broken(broken): pass\n"
    )
    lines = tmp_path / "lines"
    words = (sys.executable, "-m", "pytest", "-p", PLUGIN, "-c", "/dev/null", "--rootdir", ".", "test_it.py")
    environment = {**os.environ, VARIABLE: str(lines), "PYTHONPATH": str(ROOT)}
    subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, check=False)
    found = [json.loads(line) for line in lines.read_text().splitlines()]
    *found, last = found
    assert last["run"]["machine"]["cores"] == os.cpu_count() and last["run"]["command"].endswith(" form")
    assert {line["test"].partition("::")[2]: line["passed"] for line in found} == {
        "test_good": True,
        "test_bad": False,
        "test_broken": False,
    }
