"""Step prices and estimation errors, learnt from measured steps and ended answers."""

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field, replace
from math import ceil, exp, inf
from typing import NamedTuple

from admission.policy import PrefillHold


class StepShape(NamedTuple):
    """The features of a step that its price depends on."""

    prefill: bool
    tokens: int  # computed in the step
    pairs: int  # pairs of a computed token and a token it attends to, itself included
    switched: bool = False  # whether the previous step had different adapters


@dataclass(frozen=True, slots=True)
class StepPrices:
    """Prices in seconds, never negative."""

    prefill_step: float
    prefill_token: float
    prefill_pair: float
    decode_step: float
    decode_token: float
    decode_pair: float
    switch: float = 0.0  # for a change of adapters

    def seconds(self, shape: StepShape) -> float:
        step, token, pair = self.prefill if shape.prefill else self.decode
        return step + token * shape.tokens + pair * shape.pairs + (self.switch if shape.switched else 0.0)

    @property
    def prefill(self) -> tuple[float, float, float]:
        return self.prefill_step, self.prefill_token, self.prefill_pair

    @property
    def decode(self) -> tuple[float, float, float]:
        return self.decode_step, self.decode_token, self.decode_pair


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """The step that is being computed: no request can join it."""

    shape: StepShape
    started_at: float
    tokens: dict[str, int] = field(default_factory=dict)
    """Prompt tokens that the step computes, or answer tokens that it samples, by request."""


class StepPace(NamedTuple):
    """The scheduler's current chunk size, and its rule for holding prompts back."""

    chunk: int  # prompt tokens in a step while requests decode
    hold: PrefillHold | None = None  # None if the scheduler holds no prompts back


class RecentValues:
    """The last `most` values, and their quantiles."""

    def __init__(self, most: int) -> None:
        self._values: deque[float] = deque(maxlen=most)
        self._sorted: list[float] | None = None

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        self._values.append(value)
        self._sorted = None

    def quantile(self, share: float, above: float = -inf) -> float | None:
        """The smallest value that is at least as large as `share` of the values, of those greater than `above`; None
        if there are none."""
        if self._sorted is None:
            self._sorted = sorted(self._values)
        start = bisect_right(self._sorted, above)
        if start == len(self._sorted):
            return None
        return self._sorted[start + max(0, ceil(share * (len(self._sorted) - start)) - 1)]


Vector = tuple[float, float, float]
_PREFILL_UNITS: Vector = (1.0, 64.0, 64.0 * 512.0)
_DECODE_UNITS: Vector = (1.0, 8.0, 8.0 * 512.0)
_ENOUGH_STEPS = 2  # steps of each kind to measure before prices are known
_OUTLIER = 4.0  # a step whose error is this many times the usual error counts for less
_PACE_MEMORY = 2.0  # seconds of steps: the machine's pace is that of about the last seconds
_NEW_DRAFTS, _DRAFTS_MATTER = 0.02, 1.02  # the weight of the newest step; kept tokens that change an outlook
_LONGEST_STALL = 1.0  # seconds: longer ones are failures of the machine, which no reserve can cover
_LONGEST = 5.0  # a step counts for at most this many times its expected duration
_STRETCH = 16  # steps in a stretch: errors are measured over a stretch, because those of single steps partly cancel out
_UNMEASURED_MARGIN = 0.1
_MARGINS = (0.02, 0.5)


class Estimator:
    """Learns the prices of prefill steps and of decode steps from measured steps. Prices are known from the start with
    a calibration, otherwise after a few steps of each kind.

    A price is the product of two estimates. The costs at the machine's usual pace change with the lengths and numbers
    of requests only, so they are learnt slowly, from all shapes of steps. The pace changes whenever other processes
    take or leave the cores, for steps of all shapes alike, so it is learnt from the last seconds."""

    def __init__(self, calibrated: StepPrices | None = None) -> None:
        self._fits = {
            True: PriceFit(None if calibrated is None else calibrated.prefill, _PREFILL_UNITS),
            False: PriceFit(None if calibrated is None else calibrated.decode, _DECODE_UNITS),
        }
        self._num_measured = dict.fromkeys((True, False), 0 if calibrated is None else _ENOUGH_STEPS)
        self._switch = 0.0 if calibrated is None else calibrated.switch
        self._pace = MachinePace()
        self._errors = RecentValues(256)
        self._last_errors = RecentValues(16)  # few, so that a lasting change is soon reflected
        self._excesses = RecentValues(256)  # seconds by which steps exceeded their price
        self._stretches = RecentValues(64)
        self._expected = self._spent = 0.0
        self._num_in_stretch = 0
        self._computed = self._kept = 1.0  # tokens of each row of a decode step
        self._prices: StepPrices | None = calibrated
        self.cheapest: StepPrices | None = calibrated  # the prices when the replica was fastest

    @property
    def prices(self) -> StepPrices | None:
        if self._prices is None:
            self._prices = self._fitted()
            if self._prices is not None and (
                self.cheapest is None or _usual_seconds(self._prices) < _usual_seconds(self.cheapest)
            ):
                self.cheapest = self._prices
        return self._prices

    @property
    def stated_prices(self) -> StepPrices | None:
        """The prices of rounds of one token for each request, if drafts save as many steps as lately; None if they save
        none. A single request may gain nothing from drafts, so that no deadline may count on these prices."""
        prices, computed, kept = self.prices, self._computed, self._kept
        if prices is None or kept < _DRAFTS_MATTER:
            return None
        decode = {
            "decode_token": computed / kept * prices.decode_token,
            "decode_pair": computed / kept * prices.decode_pair,
        }
        return replace(prices, decode_step=prices.decode_step / kept, **decode)

    def add_drafts(self, computed: float, kept: float) -> None:
        """Record how many tokens of each request a decode step computed, and how many of them answers gained."""
        self._computed += _NEW_DRAFTS * (computed - self._computed)
        self._kept += _NEW_DRAFTS * (kept - self._kept)

    def _fitted(self) -> StepPrices | None:
        if min(self._num_measured.values()) < _ENOUGH_STEPS:
            return None
        prefill, decode = self._fits[True].prices, self._fits[False].prices
        if prefill is None or decode is None:
            return None
        pace = self._pace.value
        return StepPrices(*(pace * price for price in (*prefill, *decode, self._switch)))

    def add(self, shape: StepShape, seconds: float) -> None:
        """Record a step. `seconds` counts from the end of the previous step or, after a pause, from its own start."""
        if seconds <= 0:
            return
        prices, weight, expected = self.prices, 1.0, None
        if prices is not None:
            whole, pace = prices.seconds(shape), self._pace.value
            weight = self._record_error(whole, seconds)
            expected = prices.seconds(shape._replace(switched=False)) / pace
            if not shape.switched:  # its price may still be unknown
                self._pace.add(whole / pace, min(seconds, _LONGEST * whole))
            seconds /= pace
            if shape.switched:
                self._switch = max(0.0, 0.9 * self._switch + 0.1 * (seconds - expected))
                seconds = max(seconds - self._switch, 1e-9)
        self._fits[shape.prefill].add((1.0, float(shape.tokens), float(shape.pairs)), seconds, weight, expected)
        self._num_measured[shape.prefill] += 1
        self._prices = None

    def _record_error(self, expected: float, seconds: float) -> float:
        """Record the error and return the weight of the step in the fit."""
        error = abs(expected - seconds) / seconds
        usual = self._last_errors.quantile(0.5)
        self._errors.add(error)
        self._excesses.add(max(0.0, min(seconds - expected, _LONGEST_STALL)))
        self._last_errors.add(error)
        self._expected += expected
        self._spent += seconds
        self._num_in_stretch += 1
        if self._num_in_stretch == _STRETCH:
            self._stretches.add(max(0.0, self._spent - self._expected) / self._spent)
            self._expected = self._spent = 0.0
            self._num_in_stretch = 0
        far = max(abs(expected - seconds) / max(expected, 1e-9), error)
        most = _OUTLIER * max(usual or far, 0.05)
        return min(1.0, most / far) if far > 0 else 1.0

    @property
    def stall(self) -> float:
        """Seconds by which a slow step exceeds its price: nearly the most of the last 256."""
        return self._excesses.quantile(0.995) or 0.0

    def seconds_left(self, step: StepInFlight, now: float, prices: StepPrices) -> float:
        """Seconds until the step ends. An overdue step is expected to be late by the median of the recent steps that
        were even later than it is; if there were none, it should end now."""
        late = now - step.started_at - prices.seconds(step.shape)
        if late < 0:
            return -late
        usual = self._excesses.quantile(0.5, above=late)
        return 0.0 if usual is None else usual - late

    def step_error(self, share: float) -> float | None:
        """The relative error that `share` of the recent steps did not exceed; None without steps."""
        return self._errors.quantile(share)

    @property
    def margin(self) -> float:
        """The safety margin: by what share of its measured time a stretch of steps exceeds its forecast. It is the 90th
        percentile of recent stretches, limited to the range `_MARGINS`."""
        measured = self._stretches.quantile(0.9)
        least, most = _MARGINS
        return min(max(_UNMEASURED_MARGIN if measured is None else measured, least), most)


class MachinePace:
    """How much slower than usual the machine is: the time of recent steps, divided by their expected time."""

    def __init__(self, memory: float = _PACE_MEMORY) -> None:
        """A step that ended `memory` seconds of steps ago weighs about a third of a new one."""
        self._memory = memory
        self._expected = self._spent = memory

    @property
    def value(self) -> float:
        return self._spent / self._expected

    def add(self, expected: float, seconds: float) -> None:
        kept = exp(-seconds / self._memory)
        self._expected = self._expected * kept + expected
        self._spent = self._spent * kept + seconds


def _usual_seconds(prices: StepPrices) -> float:
    return sum(price * unit for price, unit in zip(prices.prefill, _PREFILL_UNITS, strict=True)) + sum(
        price * unit for price, unit in zip(prices.decode, _DECODE_UNITS, strict=True)
    )


class PriceFit:
    """Fits prices by non-negative least squares of relative errors; old steps gradually lose weight. Prices that the
    steps cannot determine, because all steps had the same shape, stay close to the prior."""

    def __init__(self, prior: Vector | None, units: Vector, *, keep: float = 0.998, trust: float = 0.02) -> None:
        """`units` are typical values of the three features. The prior weighs as much as `trust` measurements."""
        self._units = units
        self._keep = keep
        self._trust = trust
        self._matrix = [[0.0] * 3 for _ in range(3)]
        self._right = [0.0] * 3
        self._usual = 0.0
        self._weight = 0.0
        self._prices: Vector | None = prior
        self._is_stale = False

    @property
    def prices(self) -> Vector | None:
        """None if there is neither a prior nor a measurement."""
        if self._is_stale:
            self._is_stale = False
            self._prices = self._solve()
        return self._prices

    def add(self, features: Vector, seconds: float, weight: float = 1.0, expected: float | None = None) -> None:
        """Add a measurement. A `weight` below 1 means that it is not fully trusted. Its error counts as a share of the
        expected seconds, if there are any: as a share of the measured ones, the errors of long steps would count for
        less, and the prices would be too low."""
        if seconds <= 0 or weight <= 0:
            return
        scaled = [feature / unit for feature, unit in zip(features, self._units, strict=True)]
        share = weight / (expected or seconds) ** 2
        matrix, right, keep = self._matrix, self._right, self._keep
        for i in range(3):
            row, factor = matrix[i], share * scaled[i]
            right[i] = right[i] * keep + factor * seconds
            for j in range(3):
                row[j] = row[j] * keep + factor * scaled[j]
        self._usual = self._usual * keep + weight * seconds
        self._weight = self._weight * keep + weight
        self._is_stale = True

    def _solve(self) -> Vector:
        units = self._units
        usual = self._usual / self._weight
        prior = self._first_guess(usual) if self._prices is None else self._prices
        ridge = self._trust / (usual * usual)
        matrix = [list(row) for row in self._matrix]
        right = list(self._right)
        for i, (price, unit) in enumerate(zip(prior, units, strict=True)):
            matrix[i][i] += ridge
            right[i] += ridge * price * unit
        best = _minimize(matrix, right)
        return (best[0] / units[0], best[1] / units[1], best[2] / units[2])

    def _first_guess(self, usual: float) -> Vector:
        """Return initial prices that attribute half of the usual time to the step itself and half to its tokens."""
        step, tokens, _ = self._matrix[0]
        return (usual / 2, usual / 2 * step / (tokens * self._units[1]), 0.0)


def _minimize(matrix: list[list[float]], right: list[float]) -> Vector:
    """Return the non-negative vector x that minimises x'Mx - 2b'x. M is symmetric and positive definite. The best x is
    the solution for one subset of the unknowns, the others being 0. All are written out, because this runs after every
    step."""
    (a, b, c), (_, d, e), (_, _, f) = matrix
    x, y, z = right
    share_b, share_c = b / a, c / a
    v, w = _solve_pair(d - share_b * b, e - share_b * c, f - share_c * c, y - share_b * x, z - share_c * x)
    u = (x - b * v - c * w) / a
    if u >= 0 and v >= 0 and w >= 0:
        return u, v, w
    best, gain = (0.0, 0.0, 0.0), 0.0
    u, v = _solve_pair(a, b, d, x, y)
    if u >= 0 and v >= 0 and u * x + v * y > gain:
        best, gain = (u, v, 0.0), u * x + v * y
    u, w = _solve_pair(a, c, f, x, z)
    if u >= 0 and w >= 0 and u * x + w * z > gain:
        best, gain = (u, 0.0, w), u * x + w * z
    v, w = _solve_pair(d, e, f, y, z)
    if v >= 0 and w >= 0 and v * y + w * z > gain:
        best, gain = (0.0, v, w), v * y + w * z
    if x >= 0 and x * x / a > gain:
        best, gain = (x / a, 0.0, 0.0), x * x / a
    if y >= 0 and y * y / d > gain:
        best, gain = (0.0, y / d, 0.0), y * y / d
    if z >= 0 and z * z / f > gain:
        best = (0.0, 0.0, z / f)
    return best


def _solve_pair(a: float, b: float, d: float, x: float, y: float) -> tuple[float, float]:
    """Solve a u + b v = x and b u + d v = y. If rounding left no solution, return a negative one."""
    rest = d - b / a * b if a > 0 else 0.0
    if rest <= 0:
        return -1.0, -1.0
    v = (y - b / a * x) / rest
    return (x - b * v) / a, v


_HORIZONS = (0.5, 1.5, 4.0)  # seconds
_MAX_SHARE = 1.5
_FIRST_WEIGHT = 0.05  # the weight of the first guess, in squared relative spreads of the bounds
_KEPT = 0.98  # the weight that an answer keeps when the next one ends
_FARTHEST = 3.0  # an answer counts as at most this many times the spread above the quiet bound


class EstimateBound(NamedTuple):
    """A bound on the times of an answer, in seconds."""

    wait: float
    first: float  # seconds to the first token
    pace: float  # seconds for each token after the first

    def total(self, num_tokens: float) -> float:
        return self.first + self.pace * max(0.0, num_tokens - 1)


class AnswerEstimate(NamedTuple):
    """An estimate between two bounds. `quiet` assumes that no further request arrives, `busy` that requests keep
    arriving at the usual rate."""

    made_at: float
    quiet: EstimateBound
    busy: EstimateBound
    share: float  # position between the quiet bound (0) and the busy bound (1)
    num_expected: float = 1.0  # tokens of the answer that were expected

    def total(self, num_tokens: float) -> float:
        return self._between(self.quiet.total(num_tokens), self.busy.total(num_tokens))

    @property
    def wait(self) -> float:
        return self._between(self.quiet.wait, self.busy.wait)

    @property
    def first(self) -> float:
        return self._between(self.quiet.first, self.busy.first)

    def _between(self, quiet: float, busy: float) -> float:
        return quiet + self.share * (busy - quiet)


class LoadCorrection:
    """Learns where answer times lie between the quiet and the busy bound, by expected duration: a short answer can be
    overtaken by fewer requests. The position has the least squared relative errors; old answers gradually lose weight.
    Until answers have ended, it is the busy bound."""

    def __init__(self) -> None:
        self._sums = [(_FIRST_WEIGHT, _FIRST_WEIGHT) for _ in range(len(_HORIZONS) + 1)]

    def share(self, horizon: float) -> float:
        """Return the expected position between the bounds of an answer with this expected duration."""
        above, spread = self._sums[self._level(horizon)]
        return min(_MAX_SHARE, max(0.0, above / spread))

    def learn(self, estimate: AnswerEstimate, num_tokens: int, took: float) -> None:
        quiet, busy = estimate.quiet.total(num_tokens), estimate.busy.total(num_tokens)
        level, spread = self._level(quiet), (busy - quiet) / took
        rest = min(max(took - quiet, quiet - busy), _FARTHEST * (busy - quiet)) / took
        above, below = self._sums[level]
        self._sums[level] = _KEPT * above + rest * spread, _KEPT * below + spread * spread

    def _level(self, horizon: float) -> int:
        return sum(horizon >= each for each in _HORIZONS)


@dataclass(frozen=True, slots=True)
class EstimateErrors:
    """The median and the 90th percentile of |estimate - actual| / actual: of the duration of recent steps and, for the
    last 256 requests that no higher priority delayed, of the time from admission to the end of an answer with the
    tokens that it had (total), to the first token (first), and to the end that was stated at admission (stated)."""

    step_p50: float
    step_p90: float
    total_p50: float | None
    total_p90: float | None
    num_requests: int
    first_p50: float | None = None
    first_p90: float | None = None
    stated_p50: float | None = None
    stated_p90: float | None = None


class EstimateAccuracy:
    """Compares estimates with the real answers."""

    def __init__(self) -> None:
        self.correction = LoadCorrection()
        self._errors = {name: RecentValues(256) for name in ("total", "first", "stated")}
        self._num_requests = 0

    def compare(self, estimate: AnswerEstimate, num_tokens: int, first_at: float, now: float) -> None:
        """Compare the estimate with an answer of `num_tokens` tokens, the first of which came at `first_at`."""
        took, first = now - estimate.made_at, first_at - estimate.made_at
        if took <= 0:
            return
        pairs = {
            "total": (estimate.total(num_tokens), took),
            "first": (estimate.first, first),
            "stated": (estimate.total(estimate.num_expected), took),
        }
        for name, (expected, actual) in pairs.items():
            if actual > 0:
                self._errors[name].add(abs(expected - actual) / actual)
        self._num_requests += 1
        self.correction.learn(estimate, num_tokens, took)

    def errors(self, estimator: Estimator) -> EstimateErrors | None:
        half, most = estimator.step_error(0.5), estimator.step_error(0.9)
        if half is None or most is None:
            return None
        quantiles = {
            f"{name}_p{percent}": errors.quantile(percent / 100)
            for name, errors in self._errors.items()
            for percent in (50, 90)
        }
        return EstimateErrors(half, most, num_requests=self._num_requests, **quantiles)
