"""Softmax regression over sparse features: mini-batch gradient descent with Adam. Deterministic, on one thread."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Floats32 = NDArray[np.float32]
_MOMENTUM, _VARIANCE, _TINY = 0.9, 0.98, 1e-6
_LAST_RATE = 1e-4
_LEAST = np.float32(1e-30)
_MAX_BATCH, _MIN_BATCH, _BATCHES = 512, 8, 20


@dataclass(frozen=True, slots=True)
class RegressionSettings:
    epochs: int = 20  # few passes are a regularisation: later ones fit the training sources
    rate: float = 0.06  # of learning; falls linearly
    strength: float = 10.0  # the inverse of the L2 penalty
    dropout: float = 0.0  # the share of a prompt's features that a step does not see: the others must say enough


def softmax_regression(
    matrix: "csr_matrix[Any]", accepted: Floats32, weights: Floats32, settings: RegressionSettings
) -> tuple[Floats32, Floats32]:
    """Return the coefficients, shape [features, labels], and the bias of each label. `accepted`, shape [N, labels], is
    1 for each label that is right for the prompt, else 0: their probabilities together should be 1. A step updates only
    the features that occur in its batch."""
    num, width = matrix.shape
    size = max(_MIN_BATCH, min(_MAX_BATCH, num // _BATCHES))
    steps = settings.epochs * -(-num // size)
    decay = np.float32(1 / (settings.strength * num))
    num_labels = accepted.shape[1]
    model, bias = _Parameter((width, num_labels)), _Parameter((1, num_labels))
    everything = np.zeros(1, dtype=np.intp)  # the only row of the bias
    random = np.random.default_rng(0)
    step = 0
    for _ in range(settings.epochs):
        order = random.permutation(num)
        for start in range(0, num, size):
            batch = order[start : start + size]
            rows = matrix[batch]
            known = np.zeros(width, dtype=np.bool_)
            known[rows.indices] = True
            found = np.flatnonzero(known)
            rows = rows[:, found]
            if settings.dropout:
                kept = random.random(len(rows.data), dtype=np.float32) >= settings.dropout
                rows.data *= kept * np.float32(1 / (1 - settings.dropout))
            coefficients = model.value[found]
            logits = rows @ coefficients + bias.value
            raised = np.exp(logits - logits.max(axis=1, keepdims=True))
            right = raised * accepted[batch]
            gaps = raised / raised.sum(axis=1, keepdims=True) - right / np.maximum(
                right.sum(axis=1, keepdims=True), _LEAST
            )
            gaps *= (weights[batch] / len(batch))[:, None]
            step += 1
            rate = settings.rate * (1 - step / steps) + _LAST_RATE
            model.update(found, rows.T @ gaps + decay * coefficients, step, rate)
            bias.update(everything, gaps.sum(axis=0, keepdims=True), step, rate)
    return model.value, bias.value[0]


class _Parameter:
    def __init__(self, shape: tuple[int, int]) -> None:
        self.value = np.zeros(shape, dtype=np.float32)
        self._mean = np.zeros_like(self.value)
        self._square = np.zeros_like(self.value)

    def update(self, rows: NDArray[np.intp], gradient: Floats32, step: int, rate: float) -> None:
        mean, square = self._mean[rows], self._square[rows]
        mean += (1 - _MOMENTUM) * (gradient - mean)
        square += (1 - _VARIANCE) * (gradient * gradient - square)
        self._mean[rows], self._square[rows] = mean, square
        root = np.sqrt(square / np.float32(1 - _VARIANCE**step))
        self.value[rows] -= np.float32(rate / (1 - _MOMENTUM**step)) * mean / (root + np.float32(_TINY))
