"""How far forecasts were from what came."""

from dataclasses import dataclass

from admission.forecast.estimator import Estimator
from admission.forecast.promise import Hindsight, Promise
from admission.forecast.recent import Recent


@dataclass(frozen=True, slots=True)
class EstimateErrors:
    """As shares of what came."""

    step_p50: float
    step_p90: float
    total_p50: float | None
    total_p90: float | None
    num_requests: int


class Kept:
    """Promises, compared with what came of them."""

    def __init__(self) -> None:
        self.hindsight = Hindsight()
        self._totals = Recent(256)
        self._num_requests = 0

    def compare(self, promise: Promise, num_tokens: int, now: float) -> None:
        took = now - promise.made_at
        if took > 0:
            self._totals.add(abs(promise.total(num_tokens) - took) / took)
            self._num_requests += 1
            self.hindsight.learn(promise, num_tokens, took)

    def errors(self, estimator: Estimator) -> EstimateErrors | None:
        """None until steps were measured."""
        half, most = estimator.step_error(0.5), estimator.step_error(0.9)
        if half is None or most is None:
            return None
        return EstimateErrors(half, most, self._totals.quantile(0.5), self._totals.quantile(0.9), self._num_requests)
