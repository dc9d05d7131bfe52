"""The lengths of answers, learnt from answers that have ended."""

from bisect import bisect_left, bisect_right
from collections import deque
from operator import neg

_ENOUGH = 8  # answers that the model must end before anything is concluded from their lengths
_MOST = 256
_MODEST = 64  # further tokens to expect of an answer while no lengths are known
_EVERY = 8  # answers between two updates of the estimate
_TAIL = 0.5  # an answer that is longer than nearly all may continue for this share of its length


class AnswerLengths:
    """Learns the lengths of answers. An answer that was cut, by `max_tokens` or otherwise, would have been longer by an
    unknown amount, so its length is treated as censored (the Kaplan-Meier estimate).

    A deadline is judged by the 90th percentile of lengths, a wait by their mean. Until the model has ended enough
    answers, each answer is expected to continue for a modest number of tokens. An answer that is longer than all
    complete ones is expected to reach `max_tokens`.

    Cut answers have a separate window, so that many of them cannot displace the complete ones. Cut answers that are
    shorter than the shortest complete one carry no information and are not kept."""

    def __init__(self) -> None:
        self._ends: deque[int] = deque(maxlen=_MOST)
        self._cuts: deque[int] = deque(maxlen=_MOST)
        self._num_new = 0
        self._at: list[int] = []  # lengths at which answers ended, ascending
        self._left: list[float] = []  # the share of answers that are longer than each of these lengths
        self._area: list[float] = []  # mean tokens if all answers were cut at each of these lengths

    def add(self, length: int, *, cut: bool) -> None:
        if cut and self._at and length < self._at[0]:
            return
        (self._cuts if cut else self._ends).append(length)
        self._num_new += 1
        if self._num_new >= _EVERY or len(self._ends) <= 2 * _ENOUGH:
            self._num_new = 0
            self._conclude()

    @property
    def known(self) -> bool:
        return bool(self._at)

    def mean(self, most: int, so_far: int = 0) -> float:
        """The expected length of an answer that has `so_far` tokens and may have at most `most`."""
        if not self._at:
            return float(min(most, so_far + _MODEST))
        alive = self._survivors(so_far)
        if alive <= 0:
            return float(most)
        return min(float(most), so_far + (self._area_to(most) - self._area_to(so_far)) / alive)

    def long(self, most: int, so_far: int = 0, share: float = 0.9) -> int:
        """The length that is not exceeded by `share` of the answers with at least `so_far` tokens; at most `most`. Few
        such answers say little about how long the next one is."""
        if not self._at:
            return min(most, so_far + _MODEST)
        alive = self._survivors(so_far)
        if alive <= 0:
            return most
        tail = min(most, so_far + round(_TAIL * so_far)) if alive * len(self._ends) < _ENOUGH else 0
        return max(tail, self._quantile(most, so_far, (1 - share) * alive))

    def _quantile(self, most: int, so_far: int, left_over: float) -> int:
        start = bisect_left(self._at, so_far)
        found = bisect_left(self._left, -left_over, lo=start, key=neg)  # the first share of at most `left_over`
        return min(most, self._at[found]) if found < len(self._at) else most

    def _survivors(self, length: int) -> float:
        """The share of answers longer than `length`."""
        behind = bisect_right(self._at, length)
        return self._left[behind - 1] if behind else 1.0

    def _area_to(self, length: int) -> float:
        behind = bisect_right(self._at, length)
        if not behind:
            return float(length)
        return self._area[behind - 1] + self._left[behind - 1] * (length - self._at[behind - 1])

    def _conclude(self) -> None:
        self._at, self._left, self._area = [], [], []
        if len(self._ends) < _ENOUGH:
            return
        answers = sorted([(length, False) for length in self._ends] + [(length, True) for length in self._cuts])
        left, area, last = 1.0, 0.0, 0
        for i, (length, cut) in enumerate(answers):  # at equal lengths, answers that ended come first
            if cut:
                continue
            area += left * (length - last)
            left *= 1 - 1 / (len(answers) - i)
            if length == last and self._at:
                self._left[-1] = left
                continue
            last = length
            self._at.append(length)
            self._left.append(left)
            self._area.append(area)
