"""How long a step takes by its number of tokens, from the recent steps."""

from bisect import bisect_left

_EXACT, _ROUNDED = 16, 8  # steps with more than 16 tokens are measured together with those of up to 7 tokens less
_NEW_STEP, _NEW_PACE = 0.05, 0.2  # the weights of the newest step
_SETTLED = 8  # steps of a size whose mean is known well
_DOUBT = 0.5  # a size that was measured once may take so much longer than it did
_OUTLIER = 2.0  # a stall counts for at most so many times the usual time
_RECENT_STEPS = 128
_KEPT = 0.8  # the weight that a read keeps when the next one was measured


class StepCost:
    """The relative time of a decode step by its number of tokens, from the recent steps. The machine's pace, which
    changes for steps of all sizes alike, is left out. Between two measured numbers, the time is interpolated or, if
    they are large, that of the larger one: kernels compute many tokens in tiles. What was not measured lately is
    forgotten."""

    def __init__(self) -> None:
        self._points: dict[int, tuple[float, int, int]] = {}  # time, steps, and the number of the last one, by tokens
        self.pace = 1.0  # seconds of one unit of time
        self._num_steps = 0

    def learn(self, num_tokens: int, seconds: float) -> None:
        if seconds <= 0:
            return
        self._num_steps += 1
        at = _filed(num_tokens)
        known, time = self._points.pop(at, None), seconds / self.pace  # the newest point is the last
        count = 1
        if known is not None:
            before, count = known[0], known[1] + 1
            ratio = min(time / before, _OUTLIER)
            time = before * (1 + max(_NEW_STEP, 1 / count) * (ratio - 1))
            if count > _SETTLED:  # only a time that is known well shows how fast the machine is now
                self.pace *= 1 + _NEW_PACE * (ratio - 1)
        self._points[at] = time, count, self._num_steps
        while self._num_steps - self._points[oldest := next(iter(self._points))][2] > _RECENT_STEPS:
            del self._points[oldest]

    def times(self, first: int, last: int) -> list[float]:
        """Return the expected times of steps with `first` to `last` tokens. The list ends where too little is known:
        nothing so small was measured, or nothing so large."""
        sizes = sorted(self._points)
        found: list[float] = []
        for num_tokens in range(first, last + 1):
            at = _filed(num_tokens)
            index = bisect_left(sizes, at)
            if index == len(sizes) or (index == 0 and sizes[0] != at):
                break
            above = sizes[index]
            time = self._time(above)
            if above != at and above <= _EXACT:
                below = sizes[index - 1]
                least = self._time(below)
                time = least + (time - least) * (at - below) / (above - below)
            found.append(max(time, found[-1]) if found else time)
        return found

    def _time(self, size: int) -> float:
        time, count, _ = self._points[size]
        return time * (1 + _DOUBT / count) if count <= _SETTLED else time


class ReadCost:
    """The time of a step that only reads tokens: a part for the step, and one for each token."""

    def __init__(self) -> None:
        # of the weights, tokens, seconds, squares of tokens, and tokens times seconds
        self._sums: tuple[float, ...] = (0.0,) * 5

    def learn(self, num_tokens: int, seconds: float) -> None:
        new = (1.0, num_tokens, seconds, num_tokens**2, num_tokens * seconds)
        self._sums = tuple(_KEPT * known + each for known, each in zip(self._sums, new, strict=True))

    def seconds(self, num_tokens: int) -> float:
        step, each = self._parts()
        return step + each * num_tokens

    def most_tokens(self, seconds: float) -> int:
        """Return how many tokens can be read in this time."""
        step, each = self._parts()
        return max(0, int(min((seconds - step) / each, 1e9))) if each else 10**9

    def _parts(self) -> tuple[float, float]:
        weight, tokens, seconds, squares, products = self._sums
        if not tokens:
            return 0.0, 0.0
        mean, spread = seconds / tokens, weight * squares - tokens**2
        is_spread = spread > 1e-3 * tokens**2  # reads of about one size do not tell the parts apart
        each = min(max((weight * products - tokens * seconds) / spread, 0.01 * mean), mean) if is_spread else mean
        return (seconds - each * tokens) / weight, each


def _filed(num_tokens: int) -> int:
    """Return the number of tokens under which the time of such a step is kept."""
    return num_tokens if num_tokens <= _EXACT else -(-num_tokens // _ROUNDED) * _ROUNDED
