"""The fewest replicas with which every specialist keeps its promises."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.capacity.promise import Figures

Trial = Callable[[Mapping[str, int]], Mapping[str, Figures]]
"""Plays the trace with so many replicas of each specialist."""


@dataclass(frozen=True, slots=True)
class Found:
    replicas: Mapping[str, int]
    figures: Mapping[str, Figures]
    trials: tuple[Mapping[str, Figures], ...]
    """All that was tried, in its order."""


class NotEnough(RuntimeError):
    """As many as allowed do not do it."""

    def __init__(self, most: int, trials: Sequence[Mapping[str, Figures]]) -> None:
        figures = trials[-1]
        missing = "; ".join(f"{name}: {', '.join(each.misses)}" for name, each in figures.items() if not each.is_kept)
        super().__init__(f"not even {most} replicas a specialist do: {missing}")
        self.found = Found({name: each.replicas for name, each in figures.items()}, figures, tuple(trials))
        """What was tried last."""


def fewest(names: tuple[str, ...], trial: Trial, most: int) -> Found:
    """All specialists are searched at once, each between what was too few for it and what was enough: doubling, then
    halving. Specialists help each other out, so the answer is played once more as a whole, and mended where it fails.
    Raises NotEnough."""
    too_few, enough = dict.fromkeys(names, 0), dict.fromkeys(names, most + 1)
    trials: list[Mapping[str, Figures]] = []
    while any(enough[name] - too_few[name] > 1 for name in names):
        tried = {name: _next(too_few[name], enough[name], most) for name in names}
        figures = trial(tried)
        trials.append(figures)
        for name in names:
            (enough if figures[name].is_kept else too_few)[name] = tried[name]
        if any(enough[name] > most and too_few[name] >= most for name in names):
            raise NotEnough(most, trials)
    return _mended(enough, trial, most, trials)


def _next(too_few: int, enough: int, most: int) -> int:
    """Doubles until it is enough, then halves what lies between."""
    if enough > most:
        return min(most, max(1, 2 * too_few))
    return max(1, (too_few + enough) // 2) if enough - too_few > 1 else enough


def _mended(counts: dict[str, int], trial: Trial, most: int, trials: list[Mapping[str, Figures]]) -> Found:
    while True:
        figures = trial(counts)
        trials.append(figures)
        lacking = [name for name, each in figures.items() if not each.is_kept]
        if not lacking:
            return Found(counts, figures, tuple(trials))
        if any(counts[name] >= most for name in lacking):
            raise NotEnough(most, trials)
        counts = {name: count + (name in lacking) for name, count in counts.items()}
