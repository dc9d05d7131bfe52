from dataclasses import replace

import pytest

from bench.timing import table_by_metric, table_of_spreads
from simulation.results import BenchRecord, format_figure, format_table

RECORD = BenchRecord("kv", "small", "octet", "allocate", "ns", value=512.4, low=99.95, high=1234.5, runs=31)


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert format_table([("name", "n")], [("a", "1,000"), ("longer", "2")], "<>").splitlines() == [
        "name        n",
        "------  -----",
        "a       1,000",
        "longer      2",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.123, "0.12"), (1.5, "1.50"), (36.64, "36.6"), (182790, "182,790"), (1234.5, "1,234")],
)
def test_figures_keep_three_digits_or_the_whole_number(value: float, text: str) -> None:
    assert format_figure(value) == text


def test_table_of_spreads_has_a_line_per_record_and_targets_only_for_octet() -> None:
    limit = replace(RECORD, system="limit")
    lines = table_of_spreads([RECORD, limit], {("small", "allocate"): "< 2,000 ns"}).splitlines()
    assert lines[2:] == [
        "small  octet   allocate     512  100.0  1,234  ns      31  < 2,000 ns",
        "small  limit   allocate     512  100.0  1,234  ns      31",
    ]


def test_table_by_metric_leaves_missing_figures_blank() -> None:
    free = replace(RECORD, metric="free", unit="µs")
    assert table_by_metric([RECORD, free, replace(free, case="large")]).splitlines() == [
        "case   system  allocate  free",
        "                     ns    µs",
        "-----  ------  --------  ----",
        "small  octet        512   512",
        "large  octet              512",
    ]
