from pathlib import Path

from bench.plots import ENGINE, find_lines, plot_views
from simulation.results import BenchRecord


def record(case: str, metric: str, system: str, value: float) -> BenchRecord:
    return BenchRecord("engine", case, system, metric, "tok/s", value, value, value, 5)


RECORDS = [
    record("16 sequences", "decode", "octet", 900.0),
    record("1 sequence", "decode", "octet", 200.0),
    record("1 sequence", "decode", "vllm", 40.0),
    record("1 sequence vs vllm", "decode", "octet", 5.0),
    record("1 sequence", "TTFT p50", "octet", 30.0),
    record("open loop at 30 % of capacity", "goodput share", "octet", 100.0),
    record("16 sequences, 4 adapters", "throughput", "octet", 400.0),
    record("16 sequences, 4 adapters vs interleaved", "throughput", "octet", 1.0),
]


def test_every_part_has_its_own_axes_without_ratios() -> None:
    decode, open_loop, adapters = (find_lines(view, RECORDS) for view in ENGINE)
    assert {system: [(at, each.value) for at, each in line] for system, line in decode.items()} == {
        "octet": [(1, 200.0), (16, 900.0)],
        "vllm": [(1, 40.0)],
    }
    assert [at for at, _ in open_loop["octet"]] == [30]
    assert [(at, each.value) for at, each in adapters["octet"]] == [(4, 400.0)]


def test_the_same_figures_give_the_same_bytes(tmp_path: Path) -> None:
    once, again = tmp_path / "once.svg", tmp_path / "again.svg"
    plot_views(once, ENGINE, RECORDS)
    plot_views(again, ENGINE, RECORDS)
    assert once.read_bytes() == again.read_bytes() != b""
