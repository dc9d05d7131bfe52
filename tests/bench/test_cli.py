import json
import sys
from math import isfinite
from pathlib import Path

import pytest

from bench.timing import read_result
from octet.cli import main
from octet.terminal import install_hint

SCHEMA = {"bench", "case", "system", "metric", "unit", "value", "low", "high", "runs"}
TRACE = [
    {"timestamp": 0, "input_length": 1536, "output_length": 1, "hash_ids": [1, 2, 3]},
    {"timestamp": 1, "input_length": 1100, "output_length": 1, "hash_ids": [1, 2, 4]},
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in TRACE))
    return path


def check_records(path: Path, bench: str) -> set[str]:
    """Check that every line is a valid record of `bench`. Return the names of the measured systems."""
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert records
    for record in records:
        assert set(record) == SCHEMA
        assert all(isfinite(record[figure]) for figure in ("value", "low", "high", "runs"))
        assert record["bench"] == bench
    keys = [(record["case"], record["system"], record["metric"]) for record in records]
    assert len(set(keys)) == len(keys)
    return {record["system"] for record in records}


@pytest.mark.parametrize(
    ("bench", "systems"),
    [
        ("kv", {"octet", "limit"}),
        ("scheduler", {"octet"}),
        ("receipts", {"octet"}),
        pytest.param("router", {"octet", "limit"}, marks=pytest.mark.slow),
        pytest.param("doors", {"octet"}, marks=pytest.mark.slow),
        pytest.param("overview", {"octet"}, marks=pytest.mark.slow),
        pytest.param("sessions", {"octet"}, marks=pytest.mark.slow),
    ],
)
def test_a_quick_bench_prints_a_table_and_writes_records(
    bench: str, systems: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records, result = tmp_path / "out.jsonl", tmp_path / "out.json"
    assert main(["bench", bench, "--quick", "--json", str(records), "--result", str(result)]) == 0
    assert check_records(records, bench) == systems
    kept = read_result(result)
    assert (kept.bench, kept.command) == (bench, f"octet bench {bench} --quick")
    assert len(kept.records) == len(records.read_text().splitlines())
    header, rule, *rows = capsys.readouterr().out.splitlines()
    assert header.startswith("case ")
    assert set(rule) == {"-", " "}
    assert len(rows) == len((tmp_path / "out.jsonl").read_text().splitlines())


def test_trace_is_replayed_printed_recorded_and_plotted(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, plot = tmp_path / "out.jsonl", tmp_path / "plot.svg"
    options = ["--pool-sizes", "100", "2", "--json", str(out), "--plot", str(plot)]
    assert main(["bench", "kv", "--trace", str(trace), *options]) == 0
    assert check_records(out, "kv trace") == {"octet", "limit"}
    assert plot.exists()
    rows = capsys.readouterr().out.splitlines()[3:]
    assert [row.split("  ")[0] for row in rows] == ["infinite cache", "pool of 2 blocks", "pool of 100 blocks"]


def test_malformed_trace_is_reported_in_one_line(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace.write_text("nonsense\n")
    assert main(["bench", "kv", "--trace", str(trace)]) == 2
    assert f"octet bench: {trace}, line 1: " in capsys.readouterr().err


def test_missing_trace_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kv", "--trace", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl" in capsys.readouterr().err


def test_without_matplotlib_the_figures_are_kept(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out = tmp_path / "out.jsonl"
    options = ["--pool-sizes", "100", "--json", str(out), "--plot", str(tmp_path / "plot.svg")]
    assert main(["bench", "kv", "--trace", str(trace), *options]) == 2
    assert install_hint("bench") in capsys.readouterr().err
    check_records(out, "kv trace")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--plot", "x.svg"], "--plot and --pool-sizes require --trace"),
        (["--trace", "x", "--pool-sizes", "0"], "a pool size must be at least 1 block, got '0'"),
        (["--trace", "x", "--pool-sizes", "many"], "a pool size must be at least 1 block, got 'many'"),
    ],
)
def test_contradictory_options_are_refused(
    options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", "kv", *options])
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("command", [["bench"], ["bench", "kv"], ["bench", "scheduler"]])
def test_help_explains_the_spread(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    assert "10th and 90th percentiles" in capsys.readouterr().out
