"""A calibration recovers the costs that produced the measured steps. A simulation can read the file that a calibration
writes."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.engine_calibration import MeasuredStep, TooFewSteps, fit_cost_model, fit_mode, non_negative_fit
from specialist.engines.sim.engine import CalibrationInvalid, CostModel, cost_model_from_json, cost_model_to_json

SHAPES = [(n, n * context) for n in (1, 4, 16, 32, 200) for context in (8, 100, 1_000)]
COSTS = st.tuples(st.floats(0, 1e-2), st.floats(0, 5e-3), st.floats(0, 1e-6)).filter(lambda costs: max(costs) > 1e-8)


def seconds(costs: tuple[float, float, float], num_tokens: int, num_pairs: int) -> float:
    step, token, pair = costs
    return step + token * num_tokens + pair * num_pairs


def steps_of(cost: CostModel) -> list[MeasuredStep]:
    prefill = (cost.prefill_step, cost.prefill_token, cost.prefill_pair)
    decode = (cost.decode_step, cost.decode_token, cost.decode_pair)
    return [
        MeasuredStep(mode, *shape, seconds(costs, *shape))
        for mode, costs in (("prefill", prefill), ("decode", decode))
        for shape in SHAPES
    ]


@given(COSTS, COSTS)
def test_known_costs_are_recovered(prefill: tuple[float, float, float], decode: tuple[float, float, float]) -> None:
    known = replace(CostModel(*prefill, *decode))
    found, fits = fit_cost_model(steps_of(known))
    for fit in fits.values():
        assert fit.num_steps == len(SHAPES)
        assert fit.median_error < 1e-6
    for name, value in asdict(found).items():
        assert value >= 0
        assert value == pytest.approx(getattr(known, name), rel=1e-3, abs=1e-8), name


def test_a_tenth_of_stalled_steps_changes_nothing() -> None:
    known = CostModel()
    steps = steps_of(known)
    stalled = [
        step._replace(seconds=step.seconds * 5) if i % len(SHAPES) == 7 else step for i, step in enumerate(steps)
    ]
    assert fit_mode(stalled, "decode").token == pytest.approx(known.decode_token, rel=1e-3)


def test_costs_are_never_negative() -> None:
    """If larger steps take less time, the best non-negative fit has only a cost per step."""
    steps = [MeasuredStep("decode", n, n * 10, 1.0 / n) for n in (1, 2, 3, 4, 5, 6, 7, 8)]
    fit = fit_mode(steps, "decode")
    assert (fit.token, fit.pair) == (0, 0)
    assert fit.step > 0


@given(st.lists(st.tuples(*[st.floats(0.01, 10)] * 3), min_size=3, max_size=12), st.tuples(*[st.floats(0, 3)] * 3))
def test_fit_is_the_best_of_all_non_negative_costs(rows: list[tuple[float, ...]], other: tuple[float, ...]) -> None:
    matrix = np.array(rows)
    best = non_negative_fit(matrix)
    assert (best >= 0).all()
    assert np.sum((matrix @ best - 1) ** 2) <= np.sum((matrix @ np.array(other) - 1) ** 2) + 1e-9


def test_too_few_shapes_are_refused() -> None:
    same = [MeasuredStep("decode", 1, 10, 0.1)] * 9
    with pytest.raises(TooFewSteps, match="decode: fitting three costs needs steps of at least 3 shapes, got 1"):
        fit_mode(same, "decode")
    with pytest.raises(TooFewSteps, match="prefill"):
        fit_mode(same, "prefill")


@given(COSTS)
def test_written_cost_model_is_read_back(costs: tuple[float, float, float]) -> None:
    cost = CostModel(*costs, *costs)
    assert cost_model_from_json(cost_model_to_json(cost, {"from": "a test"})) == cost


GOOD = asdict(CostModel())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not JSON"),
        ("[]", "the cost model must have an object named cost"),
        (json.dumps({"cost": {}}), "the cost model must have exactly"),
        (json.dumps({"cost": {**GOOD, "extra": 1.0}}), "the cost model must have exactly"),
        (json.dumps({"cost": {**GOOD, "decode_token": -1}}), "cost model: decode_token must be a finite number"),
        (json.dumps({"cost": {**GOOD, "decode_token": float("nan")}}), "cost model: decode_token"),
        (json.dumps({"cost": {**GOOD, "decode_token": "1"}}), "cost model: decode_token"),
        (json.dumps({"cost": {**GOOD, "decode_token": True}}), "cost model: decode_token"),
    ],
)
def test_invalid_calibration_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(CalibrationInvalid, match=complaint):
        cost_model_from_json(text)
