"""Three prices that explain what was measured best, none of them negative, the past fading."""

from itertools import combinations
from typing import NamedTuple

Vector = tuple[float, float, float]
_SUBSETS = [subset for size in (3, 2, 1) for subset in combinations(range(3), size)]


class _Sums(NamedTuple):
    matrix: list[list[float]]
    right: list[float]


class Fit:
    """Least squares of relative errors over fading sums. Where the measurements leave something open, because all of
    them had the same shape, the prices stay with what was believed before."""

    def __init__(self, prior: Vector | None, units: Vector, *, keep: float = 0.98, trust: float = 0.02) -> None:
        """`units` are usual sizes of the three features. What was believed weighs as much as `trust` measurements."""
        self._units = units
        self._keep = keep
        self._trust = trust
        self._sums = _Sums([[0.0] * 3 for _ in range(3)], [0.0] * 3)
        self._usual = 0.0
        self._weight = 0.0
        self._prices: Vector | None = prior
        self._stale = False

    @property
    def prices(self) -> Vector | None:
        """None until something was measured or believed."""
        if self._stale:
            self._stale = False
            self._prices = self._solve()
        return self._prices

    def add(self, features: Vector, seconds: float, weight: float = 1.0) -> None:
        """A measurement. `weight` below 1 for one that is not to be trusted."""
        if seconds <= 0 or weight <= 0:
            return
        scaled = [feature / unit for feature, unit in zip(features, self._units, strict=True)]
        share = weight / (seconds * seconds)
        matrix, right, keep = self._sums.matrix, self._sums.right, self._keep
        for i in range(3):
            row, factor = matrix[i], share * scaled[i]
            right[i] = right[i] * keep + factor * seconds
            for j in range(3):
                row[j] = row[j] * keep + factor * scaled[j]
        self._usual = self._usual * keep + weight * seconds
        self._weight = self._weight * keep + weight
        self._stale = True

    def _solve(self) -> Vector:
        units = self._units
        usual = self._usual / self._weight
        believed = self._first_guess(usual) if self._prices is None else self._prices
        ridge = self._trust / (usual * usual)
        matrix = [list(row) for row in self._sums.matrix]
        right = list(self._sums.right)
        for i, (price, unit) in enumerate(zip(believed, units, strict=True)):
            matrix[i][i] += ridge
            right[i] += ridge * price * unit
        best = _least(matrix, right)
        return (best[0] / units[0], best[1] / units[1], best[2] / units[2])

    def _first_guess(self, usual: float) -> Vector:
        """A step has a price of its own, its tokens another: half and half, until shapes differ."""
        step, tokens, _ = self._sums.matrix[0]
        return (usual / 2, usual / 2 * step / (tokens * self._units[1]), 0.0)


def _least(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The non-negative vector x with the least x'Mx - 2b'x."""
    best, least = [0.0, 0.0, 0.0], 0.0
    for subset in _SUBSETS:
        solved = _solved([[matrix[i][j] for j in subset] for i in subset], [right[i] for i in subset])
        if solved is None or min(solved) < 0:
            continue
        cost = -sum(x * right[i] for x, i in zip(solved, subset, strict=True))
        if cost < least:
            best, least = [0.0, 0.0, 0.0], cost
            for x, i in zip(solved, subset, strict=True):
                best[i] = x
            if len(subset) == 3:
                return best
    return best


def _solved(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """By elimination; None where there is no single solution."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(rows[k][i]))
        if rows[pivot][i] == 0:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for k in range(i + 1, size):
            factor = rows[k][i] / rows[i][i]
            for j in range(i, size + 1):
                rows[k][j] -= factor * rows[i][j]
    solved = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(rows[i][j] * solved[j] for j in range(i + 1, size))
        solved[i] = (rows[i][size] - rest) / rows[i][i]
    return solved
