"""What a step will cost, learnt from those that were taken."""

from admission.forecast.fit import Fit, Vector
from admission.forecast.prices import Prices
from admission.forecast.recent import Recent
from admission.forecast.shape import Shape

_PREFILL_UNITS: Vector = (1.0, 64.0, 64.0 * 512.0)
_DECODE_UNITS: Vector = (1.0, 8.0, 8.0 * 512.0)
_ENOUGH_STEPS = 2
"""Of each kind, before a price is named."""
_OUTLIER = 4.0
"""A step that is off by so many times the usual error counts for less."""
_STRETCH = 16
"""Steps whose errors may make up for each other: a request's time is a sum of many."""
_UNMEASURED_MARGIN = 0.1
"""Of a forecast, as long as no stretch has been measured."""
_MARGINS = (0.02, 0.5)


class Estimator:
    """One set of prices for chunks of prompt and one for decode steps, each following what is measured.

    Starts from a calibration or from nothing; then no price is named before a few steps of either kind were taken.
    """

    def __init__(self, calibrated: Prices | None = None) -> None:
        self._fits = {
            True: Fit(None if calibrated is None else calibrated.prefill, _PREFILL_UNITS),
            False: Fit(None if calibrated is None else calibrated.decode, _DECODE_UNITS),
        }
        self._num_measured = dict.fromkeys((True, False), 0 if calibrated is None else _ENOUGH_STEPS)
        self._switch = 0.0 if calibrated is None else calibrated.switch
        self._errors = Recent(256)
        self._last_errors = Recent(16)
        """So few that a change for good is soon what is usual."""
        self._stretches = Recent(64)
        self._expected = self._spent = 0.0
        self._num_stretch = 0
        self._prices: Prices | None = calibrated
        self._cheapest: Prices | None = calibrated

    @property
    def prices(self) -> Prices | None:
        """None until measured or calibrated."""
        if self._prices is None:
            self._prices = self._fitted()
            if self._prices is not None and (self._cheapest is None or _usual(self._prices) < _usual(self._cheapest)):
                self._cheapest = self._prices
        return self._prices

    @property
    def cheapest(self) -> Prices | None:
        """What steps cost when the replica was at its best."""
        return self._cheapest

    def _fitted(self) -> Prices | None:
        if min(self._num_measured.values()) < _ENOUGH_STEPS:
            return None
        prefill, decode = self._fits[True].prices, self._fits[False].prices
        if prefill is None or decode is None:
            return None
        return Prices(*prefill, *decode, self._switch)

    def add(self, shape: Shape, seconds: float) -> None:
        """A step of this shape took so long, from the end of the one before where there was no pause."""
        if seconds <= 0:
            return
        weight = 1.0
        prices = self.prices
        if prices is not None:
            weight = self._judge(prices.seconds(shape), seconds)
        if shape.switched:
            self._learn_switch(shape, seconds)
            seconds = max(seconds - self._switch, 1e-9)
        self._fits[shape.prefill].add((1.0, float(shape.tokens), float(shape.pairs)), seconds, weight)
        self._num_measured[shape.prefill] += 1
        self._prices = None

    def _judge(self, expected: float, seconds: float) -> float:
        """Book the error. How much the step is to count."""
        error = abs(expected - seconds) / seconds
        usual = self._last_errors.quantile(0.5)
        self._errors.add(error)
        self._last_errors.add(error)
        self._expected += expected
        self._spent += seconds
        self._num_stretch += 1
        if self._num_stretch == _STRETCH:
            self._stretches.add(max(0.0, self._spent - self._expected) / self._spent)
            self._expected = self._spent = 0.0
            self._num_stretch = 0
        far = max(abs(expected - seconds) / max(expected, 1e-9), error)
        most = _OUTLIER * max(usual or far, 0.05)
        return min(1.0, most / far) if far > 0 else 1.0

    def _learn_switch(self, shape: Shape, seconds: float) -> None:
        prices = self.prices
        if prices is not None:
            rest = seconds - prices.seconds(shape._replace(switched=False))
            self._switch = max(0.0, 0.9 * self._switch + 0.1 * rest)

    def step_error(self, share: float) -> float | None:
        """The error that `share` of the recent steps did not exceed, as a share of what they took."""
        return self._errors.quantile(share)

    @property
    def margin(self) -> float:
        """How much longer than forecast a stretch of work may well take, as a share."""
        measured = self._stretches.quantile(0.9)
        least, most = _MARGINS
        return min(max(_UNMEASURED_MARGIN if measured is None else measured, least), most)


def _usual(prices: Prices) -> float:
    """Seconds of a usual chunk and a usual round."""
    return sum(price * unit for price, unit in zip(prices.prefill, _PREFILL_UNITS, strict=True)) + sum(
        price * unit for price, unit in zip(prices.decode, _DECODE_UNITS, strict=True)
    )
