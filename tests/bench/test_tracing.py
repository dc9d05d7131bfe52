import pytest

from bench.timing import Board
from bench.tracing import BESIDE, OFF, ON, TracedRound, compute_figures, drawing_records


def test_ratios_are_computed_per_round() -> None:
    rounds = [
        {OFF: TracedRound(100.0, 2.0), ON: TracedRound(99.0, 2.02), BESIDE: TracedRound(50.0, 4.0)},
        {OFF: TracedRound(10.0, 20.0), ON: TracedRound(9.9, 20.2), BESIDE: TracedRound(20.0, 10.0)},
        {OFF: TracedRound(1.0, 1.0), ON: TracedRound(0.99, 1.01), BESIDE: TracedRound(1.0, 1.0)},
    ]
    board = Board("tracing")
    for number, each in enumerate(rounds):
        board.add(number, "x", "octet", compute_figures(each))
    found = {record.metric: record for record in board.records()}
    assert found["on over off, throughput"].value == pytest.approx(0.99)
    assert found["on over off, CPU a thousand tokens"].value == pytest.approx(1.01)
    assert found["off over beside, throughput"].value == pytest.approx(1.0)
    assert found["off, throughput"].value == 10.0 and found["off, throughput"].runs == 3
    without = compute_figures({OFF: rounds[0][OFF], ON: rounds[0][ON]})
    assert "off over beside, throughput" not in {figure.metric for figure in without}


def test_drawing_and_writing_are_timed_separately() -> None:
    drawn, written = drawing_records(1)
    assert drawn.value > 0 and written.value > 0 and (drawn.unit, written.unit) == ("µs", "µs")
