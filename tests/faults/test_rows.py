"""Every row of the table is there, and every test that it names."""

import re

import pytest

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


def test_every_test_that_is_named_for_a_row_is_of_one() -> None:
    numbers = {int(number) for name in names_here() for number in re.findall(r"::test_(\d+)_", name)}
    assert numbers <= {row.number for row in ROWS} and 17 in numbers
