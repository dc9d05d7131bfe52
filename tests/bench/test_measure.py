import gc
from collections.abc import Callable

import pytest

from bench.timing import Board, FigureKey, Subject, interleave
from simulation.results import percentile


def subject(name: str, ready: Callable[[], Callable[[], object]]) -> Subject:
    return Subject(name, "call", "µs", ready)


def test_every_subject_is_prepared_and_run_once_per_round_after_a_warm_up() -> None:
    log: list[str] = []

    def ready_as(name: str) -> Callable[[], Callable[[], object]]:
        def ready() -> Callable[[], object]:
            log.append(f"{name} ready")
            return lambda: log.append(f"{name} runs")

        return ready

    board = interleave("kv", [subject("a", ready_as("a")), subject("b", ready_as("b"))], runs=5)
    assert [record.runs for record in board.records()] == [5, 5]
    rounds = [log[i : i + 4] for i in range(0, len(log), 4)]
    assert len(rounds) == 6
    assert {tuple(r) for r in rounds} == {
        ("a ready", "a runs", "b ready", "b runs"),
        ("b ready", "b runs", "a ready", "a runs"),
    }


def test_garbage_collector_is_off_during_timing_and_on_after_a_failure() -> None:
    seen: list[bool] = []

    def fail() -> None:
        seen.append(gc.isenabled())
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        interleave("kv", [subject("a", lambda: fail)], runs=1)
    assert seen == [False]
    assert gc.isenabled()


def test_a_percentile_is_one_of_the_samples() -> None:
    samples = [float(i) for i in range(1, 12)]
    assert (percentile(samples, 10), percentile(samples, 90)) == (2.0, 10.0)
    assert (percentile([3.0, 1.0], 10), percentile([3.0, 1.0], 90)) == (1.0, 3.0)


def board_of(**samples: tuple[float, ...]) -> Board:
    """Return a board with the given samples for each case."""
    board = Board("kv")
    for case, values in samples.items():
        for number, value in enumerate(values):
            board.add(number, case, "octet", [("call", "µs", value)])
    return board


def test_a_record_is_the_median_with_its_spread() -> None:
    (record,) = board_of(a=(4.0, 1.0, 2.0)).records()
    assert (record.value, record.low, record.high, record.runs) == (2.0, 1.0, 4.0, 3)


def test_ratio_is_computed_per_round() -> None:
    board = board_of(a=(1.0, 10.0, 1.0), b=(2.0, 20.0, 3.0))
    (record,) = board.ratio(FigureKey("b", "octet", "call"), FigureKey("a", "octet", "call"), "b vs a")
    assert (record.value, record.low, record.high, record.unit) == (2.0, 2.0, 3.0, "x")
