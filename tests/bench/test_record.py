import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from bench.timing import write_records
from simulation.results import BenchRecord

RECORD = BenchRecord("kv", "a pool", "octet", "allocate", "µs/block", value=2.5, low=2.0, high=3.0, runs=3)


def test_written_records_are_read_back(tmp_path: Path) -> None:
    records = [RECORD, replace(RECORD, system="limit", value=2.0)]
    write_records(tmp_path / "out.jsonl", records)
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert [BenchRecord(**json.loads(line)) for line in lines] == records


def test_record_has_the_keys_of_the_schema_in_order() -> None:
    assert list(asdict(RECORD)) == ["bench", "case", "system", "metric", "unit", "value", "low", "high", "runs"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"value": float("nan")}, "must be finite"),
        ({"high": float("inf")}, "must be finite"),
        ({"low": 2.6}, "2.5 is not between 2.6 and 3.0"),
        ({"runs": 0}, "runs must be at least 1, got 0"),
    ],
)
def test_inconsistent_record_is_refused(change: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        BenchRecord(**{**asdict(RECORD), **change})


def test_failed_write_leaves_only_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.jsonl"
    write_records(path, [RECORD])
    before = path.read_bytes()

    def fail(self: Path, target: Path) -> Path:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_records(path, [])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
