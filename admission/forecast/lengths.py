"""How long answers usually are."""

from bisect import bisect_right
from collections import deque

_ENOUGH = 8
"""Answers that ended by themselves, before anything is concluded from them."""
_MOST = 256
_MODEST = 64
"""Tokens that are to come of an answer, as long as nothing is known of others."""
_EVERY = 8
"""Answers between two looks at all of them."""


class Lengths:
    """Learnt from answers that ended. One that was cut, at `max_tokens` or by anything else, would have been longer,
    nobody knows by how much: it counts as having survived to there (Kaplan and Meier's estimate).

    What a caller may expect: `max_tokens` is what an answer may cost, hardly ever what it does cost. A deadline is
    judged by the length that nine of ten answers keep within, a wait by the mean of those before. Until enough
    answers have ended by themselves, each is taken to go on for a modest while; beyond the longest that was seen,
    only `max_tokens` is known. Cuts have a window of their own, and those before the shortest end, which say nothing,
    are not kept: nobody can push out what was learnt.
    """

    def __init__(self) -> None:
        self._ends: deque[int] = deque(maxlen=_MOST)
        self._cuts: deque[int] = deque(maxlen=_MOST)
        self._num_new = 0
        self._at: list[int] = []
        """Lengths at which answers ended, ascending."""
        self._left: list[float] = []
        """The share of answers that go on behind each of them."""
        self._area: list[float] = []
        """Mean tokens up to each of them."""

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
        """Tokens of an answer that has `so_far` of them and may have `most`."""
        if not self._at:
            return float(min(most, so_far + _MODEST))
        alive = self._survivors(so_far)
        if alive <= 0:
            return float(most)
        return min(float(most), so_far + (self._area_to(most) - self._area_to(so_far)) / alive)

    def long(self, most: int, so_far: int = 0, share: float = 0.9) -> int:
        """A length that `share` of such answers keep within."""
        if not self._at:
            return min(most, so_far + _MODEST)
        alive = self._survivors(so_far)
        if alive <= 0:
            return most
        for at, left in zip(self._at, self._left, strict=True):
            if at >= most:
                break
            if at >= so_far and left <= (1 - share) * alive:
                return at
        return most

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
        for i, (length, cut) in enumerate(answers):  # what ended at a length comes before what was cut there
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
