import os
from pathlib import Path

import pytest

from bench.timing import ResultUnreadable, read_result
from octet.cli import main
from simulation.results import BenchRecord, RunMeter, write_result

RECORD = BenchRecord("kv", "a case", "octet", "time", "ns", 2.0, 1.0, 3.0, 5)


def test_written_result_is_read_back(tmp_path: Path) -> None:
    result = RunMeter().result("kv", "octet bench kv", [RECORD], ["a note: größer"])
    write_result(tmp_path / "kv.json", result)
    assert read_result(tmp_path / "kv.json") == result
    assert result.machine.cores == os.cpu_count()
    assert result.machine.cpu and result.machine.memory_gib > 0


def test_commit_is_recorded_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = RunMeter()
    monkeypatch.setattr("simulation.results._commit", lambda: "a later one")
    assert meter.result("kv", "", [RECORD]).machine.commit == meter.commit != "a later one"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"records": 1}', '{"records": [{}], "machine": {}, "notes": []}'])
def test_invalid_result_file_is_refused_by_name(content: str, tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text(content)
    with pytest.raises(ResultUnreadable, match=r"odd\.json"):
        read_result(tmp_path / "odd.json")


def test_result_contains_its_command(tmp_path: Path) -> None:
    path = tmp_path / "kv.json"
    assert main(["bench", "kv", "--json", str(tmp_path / "lines"), "--quick", "--result", str(path)]) == 0
    result = read_result(path)
    assert result.command == "octet bench kv --quick"
    assert {record.bench for record in result.records} == {"kv"}
