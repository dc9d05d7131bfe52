"""Calibrates a classifier on prompts that it was not trained on: a temperature for the choice of a specialist, and the
log odds of `reject`."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from router.routing.classifier.linear import LinearModel, label_probabilities, reject_column, to_half

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.2, 8.0
MAX_FALSE_REFUSALS = 0.035  # of the prompts for which a specialist is right
_LEAST = 1e-12
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Calibration:
    temperature: float  # of the specialists' logits
    reject_temperature: float = 1.0
    reject_offset: float = 0.0  # added to the log odds of `reject`


IDENTITY = Calibration(1.0)


def calibrate_logits(logits: Floats, calibration: Calibration, reject: int | None) -> Floats:
    out = logits / calibration.temperature
    if reject is not None:
        out[:, reject] = logits[:, reject] / calibration.reject_temperature + calibration.reject_offset
    return out


def calibrate_model(model: LinearModel, calibration: Calibration) -> LinearModel:
    """Return the uncalibrated model with the calibration. Its temperature divides all logits, so those of `reject` are
    scaled by what the temperatures differ."""
    reject = reject_column(model.labels)
    weights, bias, temperature = model.weights.astype(np.float32), model.bias.copy(), calibration.temperature
    if reject is not None:
        ratio = temperature / calibration.reject_temperature
        weights[:, reject] *= ratio
        bias[reject] = bias[reject] * ratio + calibration.reject_offset * temperature
    return replace(model, weights=to_half(weights), bias=bias, temperature=temperature)


def fit_calibration(logits: Floats, accepted: NDArray[np.float32], reject: int | None) -> Calibration:
    """Return the calibration with the lowest mean log loss. At most `MAX_FALSE_REFUSALS` of the prompts for which a
    specialist is right are rejected; if there are more, rejection becomes less likely for all prompts."""
    if reject is None:
        return Calibration(fit_temperature(logits, accepted))
    others = np.delete(np.arange(logits.shape[1]), reject)
    served = np.asarray(accepted[:, others].any(axis=1), dtype=np.bool_)
    temperature = (
        fit_temperature(logits[np.ix_(served, others)], accepted[np.ix_(served, others)]) if served.any() else 1.0
    )
    certain = np.flatnonzero(served != (accepted[:, reject] > 0))
    odds = logits[:, reject]
    calibration = Calibration(temperature)
    if served[certain].any() and not served[certain].all():
        slope, offset = _fit_odds(odds[certain], ~served[certain])
        calibration = Calibration(temperature, 1 / slope, offset)
    return _limit_refusals(logits, served & (accepted[:, reject] == 0), calibration, reject)


def _limit_refusals(logits: Floats, served: NDArray[np.bool_], calibration: Calibration, reject: int) -> Calibration:
    if not served.any():
        return calibration
    found = label_probabilities(calibrate_logits(logits[served], calibration, reject), reject)
    best = np.delete(found, reject, axis=1).max(axis=1)
    excess = np.sort(np.log(np.maximum(found[:, reject], _LEAST)) - np.log(np.maximum(best, _LEAST)))
    limit = float(excess[min(len(excess) - 1, int(len(excess) * (1 - MAX_FALSE_REFUSALS)))])
    return replace(calibration, reject_offset=calibration.reject_offset - max(0.0, limit))


def _fit_odds(odds: Floats, rejected: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the slope and the offset of the log odds with the lowest mean log loss."""
    from scipy.optimize import minimize

    sign = np.where(rejected, -1.0, 1.0)

    def loss(at: Floats) -> float:
        return float(np.logaddexp(0, sign * (np.exp(at[0]) * odds + at[1])).mean())

    bounds = [(-np.log(MAX_TEMPERATURE), -np.log(MIN_TEMPERATURE)), (-10.0, 10.0)]
    best = minimize(loss, np.zeros(2), method="L-BFGS-B", bounds=bounds)
    return float(np.float32(np.exp(best.x[0]))), float(np.float32(best.x[1]))


def fit_temperature(logits: Floats, accepted: NDArray[np.float32]) -> float:
    """Return the temperature of a softmax with the lowest mean log loss."""
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax, logsumexp

    def loss(log_temperature: float) -> float:
        scaled = log_softmax(logits / np.exp(log_temperature), axis=1)
        return float(-logsumexp(np.where(accepted > 0, scaled, -np.inf), axis=1).mean())

    bounds = np.log((MIN_TEMPERATURE, MAX_TEMPERATURE))
    best = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-10})
    return float(np.float32(np.exp(best.x)))
