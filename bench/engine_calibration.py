"""Measures the cost of Octet's steps by their shape, and fits the cost model."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from bench.engine_decode import DecodeJob
from bench.processes import Peer
from specialist.engines.sim.engine import CostModel, cost_model_to_json

Mode = Literal["prefill", "decode"]
SHARE_LEFT_OUT = 0.1  # share of steps left out: the slowest, in which another process ran


class MeasuredStep(NamedTuple):
    mode: str
    num_tokens: int
    num_pairs: int  # pairs of a token and a token that it attends to
    seconds: float


class TooFewSteps(ValueError):
    """There are too few steps to fit a cost model."""


@dataclass(frozen=True, slots=True)
class Fit:
    step: float
    token: float
    pair: float
    num_steps: int
    median_error: float  # relative


def fit_cost_model(steps: Sequence[MeasuredStep]) -> tuple[CostModel, dict[Mode, Fit]]:
    """Fit the cost model to the steps. Adapter switches and preemptions are not measured and keep their defaults."""
    fits = {mode: fit_mode(steps, mode) for mode in get_args(Mode)}
    costs = {f"{mode}_{part}": getattr(fit, part) for mode, fit in fits.items() for part in ("step", "token", "pair")}
    return replace(CostModel(), **costs), fits


def fit_mode(steps: Sequence[MeasuredStep], mode: Mode) -> Fit:
    """Fit non-negative costs by least squares of relative errors. The slowest steps are ignored. Raises TooFewSteps."""
    mine = [step for step in steps if step.mode == mode]
    shapes = {(step.num_tokens, step.num_pairs) for step in mine}
    if len(shapes) < 3:
        raise TooFewSteps(f"{mode}: fitting three costs needs steps of at least 3 shapes, got {len(shapes)}")
    features = np.array([(1, step.num_tokens, step.num_pairs) for step in mine], dtype=np.float64)
    relative = features / np.array([[step.seconds] for step in mine])
    errors = relative @ non_negative_fit(relative) - 1
    kept = np.argsort(errors)[int(SHARE_LEFT_OUT * len(mine)) :]  # most negative: slower than predicted
    costs = non_negative_fit(relative[kept])
    step, token, pair = map(float, costs)
    return Fit(step, token, pair, len(mine), float(np.median(np.abs(relative @ costs - 1))))


def non_negative_fit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the x >= 0 that minimises |rows @ x - 1|. Columns are scaled to equal length first: their costs differ
    widely (an attended pair of tokens costs about a hundred-thousandth of a step)."""
    scale = np.linalg.norm(rows, axis=0)
    solution, _ = nnls(rows / scale, np.ones(len(rows)))
    return np.asarray(solution / scale, dtype=np.float64)


_ANSWER = 16
# Number of sequences and length of their prompts: short and long, few and many, so that each cost has an effect.
FULL_SHAPES = ((1, 16), (1, 64), (1, 256), (1, 1_024), (4, 32), (4, 512), (16, 32), (16, 256), (32, 16), (32, 128))
QUICK_SHAPES = ((1, 4), (1, 32), (4, 8), (4, 64))
GPU_SHAPES = (
    *((1, 64), (1, 512), (1, 2_048), (4, 256), (4, 2_048), (8, 2_048), (16, 128), (16, 1_024), (32, 128), (64, 64)),
    *((128, 32), (128, 256)),
)


def measured_steps(peer: Peer, vocab_size: int, shapes: Sequence[tuple[int, int]]) -> Iterator[MeasuredStep]:
    for seed in ("warm-up", "counted"):
        for concurrency, prompt_tokens in shapes:
            job = DecodeJob(f"{concurrency} x {prompt_tokens}", concurrency, prompt_tokens, _ANSWER)
            steps = peer.call("steps", prompts=job.prompts(seed, vocab_size), new_tokens=_ANSWER)
            if seed == "counted":
                yield from (MeasuredStep(*step) for step in steps)


def calibrate(
    peer: Peer, vocab_size: int, revision: str, shapes: Sequence[tuple[int, int]] = FULL_SHAPES
) -> tuple[str, str]:
    cost, fits = fit_cost_model(list(measured_steps(peer, vocab_size, shapes)))
    about: dict[str, Any] = {
        "revision": revision,
        "settings": peer.settings,
        "fits": {mode: asdict(fit) for mode, fit in fits.items()},
        "not measured": ["adapter_switch", "preemption"],
    }
    lines = [
        f"{mode}: {1e3 * fit.step:.3g} ms a step, {1e3 * fit.token:.3g} ms a token, {1e9 * fit.pair:.3g} ns a pair; "
        f"half of {fit.num_steps} steps within {100 * fit.median_error:.1f} %"
        for mode, fit in fits.items()
    ]
    return cost_model_to_json(cost, about), "\n".join(lines)
