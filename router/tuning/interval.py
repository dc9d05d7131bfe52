"""How sure a share, or the place of a quantile, can be after so many cases: 95 %, exact where it can be."""

from math import ceil, exp, lgamma, log, sqrt

_TAIL = 0.025
_Z = 1.959964
"""The normal distribution beyond it, on either side, is one tail."""


def share_interval(hits: int, total: int) -> tuple[float, float]:
    """Wilson's. Everything is possible of nothing."""
    if total == 0:
        return 0.0, 1.0
    share, square = hits / total, _Z * _Z
    centre = share + square / (2 * total)
    spread = _Z * sqrt(share * (1 - share) / total + square / (4 * total * total))
    low, high = ((centre + sign * spread) / (1 + square / total) for sign in (-1, 1))
    return (0.0 if hits == 0 else max(0.0, low)), (1.0 if hits == total else min(1.0, high))


def fewest(share: float) -> int:
    """Cases without which the quantile may well lie beyond all of them, on one side or the other."""
    return ceil(log(_TAIL) / log(max(share, 1 - share)))


def quantile_ranks(share: float, total: int) -> tuple[int, int]:
    """Between which of `total` cases, in order and counted from 0, the quantile lies, for a share within (0, 1): -1 for
    before the first, `total` for after the last."""
    low, below = -1, 0.0
    for rank in range(total):
        below += exp(_log_ways(total, rank) + rank * log(share) + (total - rank) * log(1 - share))
        if below <= _TAIL:
            low = rank
        if below >= 1 - _TAIL:
            return low, rank
    return low, total


def _log_ways(total: int, chosen: int) -> float:
    return lgamma(total + 1) - lgamma(chosen + 1) - lgamma(total - chosen + 1)
