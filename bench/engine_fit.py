"""The cost model that explains measured steps best."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specialist.engines.sim.cost import CostModel

Mode = Literal["prefill", "decode"]
SHARE_LEFT_OUT = 0.1
"""Of the steps, those that took longest for what they did: somebody else had the processor."""


class MeasuredStep(NamedTuple):
    mode: str
    num_tokens: int
    num_pairs: int
    """Of a token and a token it looks back at."""
    seconds: float


class TooFewSteps(ValueError):
    """Nothing to fit to."""


@dataclass(frozen=True, slots=True)
class Fit:
    step: float
    token: float
    pair: float
    num_steps: int
    median_error: float
    """Half of the steps are predicted better than this, as a share of their time."""


def fit_cost_model(steps: Sequence[MeasuredStep]) -> tuple[CostModel, dict[Mode, Fit]]:
    """Adapter switches and preemptions are not measured: they keep the defaults."""
    prefill, decode = fit_mode(steps, "prefill"), fit_mode(steps, "decode")
    cost = replace(
        CostModel(),
        prefill_step=prefill.step,
        prefill_token=prefill.token,
        prefill_pair=prefill.pair,
        decode_step=decode.step,
        decode_token=decode.token,
        decode_pair=decode.pair,
    )
    return cost, {"prefill": prefill, "decode": decode}


def fit_mode(steps: Sequence[MeasuredStep], mode: Mode) -> Fit:
    """Least squares of the relative errors, without negative costs."""
    mine = [step for step in steps if step.mode == mode]
    shapes = {(step.num_tokens, step.num_pairs) for step in mine}
    if len(shapes) < 3:
        raise TooFewSteps(f"{mode}: three costs need steps of at least 3 shapes, got {len(shapes)}")
    features = np.array([(1, step.num_tokens, step.num_pairs) for step in mine], dtype=np.float64)
    relative = features / np.array([[step.seconds] for step in mine])
    errors = relative @ non_negative_fit(relative) - 1
    kept = np.argsort(errors)[int(SHARE_LEFT_OUT * len(mine)) :]  # most negative: took longer than predicted
    costs = non_negative_fit(relative[kept])
    step, token, pair = map(float, costs)
    return Fit(step, token, pair, len(mine), float(np.median(np.abs(relative @ costs - 1))))


def non_negative_fit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """x >= 0 with the least |rows @ x - 1|. The best without some columns, over all choices of them, is the best."""
    num_columns = rows.shape[1]
    best, least = np.zeros(num_columns), float(len(rows))
    for count in range(1, num_columns + 1):
        for columns in combinations(range(num_columns), count):
            x = np.zeros(num_columns)
            x[list(columns)] = _least_squares(rows[:, columns])
            error = float(np.sum((rows @ x - 1) ** 2))
            if (x >= 0).all() and error < least:
                best, least = x, error
    return best


def _least_squares(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Columns are scaled alike first: a pair costs a hundred thousandth of a step."""
    scale = np.linalg.norm(rows, axis=0)
    solution = np.linalg.lstsq(rows / scale, np.ones(len(rows)), rcond=None)[0]
    return np.asarray(solution / scale, dtype=np.float64)
