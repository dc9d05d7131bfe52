"""CPU time stolen by the host is read from the kernel and shown with the figures."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.pages import origin
from simulation.results import CpuTicks, RunMeter, share_stolen


def test_stolen_share_is_of_the_time_between_two_readings(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.write_text("cpu  100 0 50 800 10 0 0 40 7 0\ncpu0 1 2 3\n")
    after.write_text("cpu  150 0 75 900 10 0 0 65 9 0\ncpu0 1 2 3\n")
    assert CpuTicks.now(before) == CpuTicks(40, 1000)
    assert share_stolen(CpuTicks.now(before), CpuTicks.now(after)) == 25 / 200


@pytest.mark.parametrize("text", ["", "cpu  1 2 3\n", "cpu  a b c d e f g h\n"])
def test_missing_kernel_figures_are_no_error(tmp_path: Path, text: str) -> None:
    stat = tmp_path / "stat"
    stat.write_text(text)
    assert CpuTicks.now(stat) is None and CpuTicks.now(tmp_path / "none") is None
    assert share_stolen(None, CpuTicks(1, 2)) is None and share_stolen(CpuTicks(1, 2), CpuTicks(1, 2)) is None


def test_stolen_share_is_shown_beside_the_figures() -> None:
    result = RunMeter().result("kv", "octet bench kv", [])
    known = replace(result, machine=replace(result.machine, stolen=0.124))
    unknown = replace(result, machine=replace(result.machine, stolen=None))
    assert origin(known).endswith(", 12 % of CPU stolen.")
    assert origin(unknown).endswith(f", load {result.machine.load}.")
