"""Finds the fewest replicas that meet the objectives, and what limits a specialist that more replicas do not help."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from octet.terminal import pluralize
from simulation.capacity import Figures, Miss, SpecialistFigures
from simulation.traces import TraceRequest

_HELPS = 0.05  # the relative change of a figure from which more replicas count as a help
_MOST_STALLS = 2  # doublings without help after which the search for a specialist ends
_ANSWER_SECONDS = 1.0  # the window in which a burst is counted if the missed objective has no time
ReplicaTrial = Callable[[Mapping[str, int]], Figures]
"""Simulates the trace with the given number of replicas of each specialist."""
AloneTrial = Callable[[str], SpecialistFigures]
"""Simulates each request of a specialist alone."""


@dataclass(frozen=True, slots=True)
class CapacityAnswer:
    replicas: Mapping[str, int]
    figures: Figures
    trials: tuple[Figures, ...]  # the figures of every trial, in order
    limits: Mapping[str, str] = field(default_factory=dict)  # what limits each specialist that replicas cannot help

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(name for name, figures in self.figures.items() if figures.misses)


def find_fewest(
    names: Sequence[str], trial: ReplicaTrial, alone: AloneTrial, requests: Sequence[TraceRequest], most: int
) -> CapacityAnswer:
    """Find the fewest replicas of each specialist, at most `most`, by doubling, then by bisection, for all specialists
    at once. A specialist that more replicas do not help keeps the fewest after which they did not. Specialists affect
    each other, so the result is simulated as a whole, and each that misses an objective gets more replicas. No numbers
    are simulated twice."""
    trials: dict[tuple[int, ...], Figures] = {}
    search = {name: _SpecialistSearch(name, most, alone, requests) for name in names}

    def try_counts() -> Figures:
        counts = {name: each.next_count for name, each in search.items()}
        key = tuple(counts.values())
        if key not in trials:
            trials[key] = trial(counts)
        return trials[key]

    while not all(each.is_done for each in search.values()):
        figures = try_counts()
        for name, each in search.items():
            each.learn(figures[name])
    while True:
        figures = try_counts()
        short = [each for name, each in search.items() if figures[name].misses and not each.is_stuck]
        if not short:
            break
        for each in short:
            each.add(figures[each.name])
    counts = {name: each.next_count for name, each in search.items()}
    limits = {name: each.limit for name, each in search.items() if each.limit and figures[name].misses}
    return CapacityAnswer(counts, figures, tuple(trials.values()), limits)


class _SpecialistSearch:
    """The search for one specialist: too few and enough replicas, as far as is known."""

    def __init__(self, name: str, most: int, alone: AloneTrial, requests: Sequence[TraceRequest]) -> None:
        self.name = name
        self._most = most
        self._alone = alone
        self._requests = requests
        self._too_few, self._enough = 0, most + 1
        self._before: SpecialistFigures | None = None  # the figures before the first doubling without help
        self._num_stalls = 0
        self._increment = 1
        self._best_alone: SpecialistFigures | None = None
        self.limit = ""  # what limits the specialist; empty while more replicas may help

    @property
    def is_stuck(self) -> bool:
        """Whether the search has ended without meeting the objectives."""
        return bool(self.limit) or self._too_few >= self._most

    @property
    def is_done(self) -> bool:
        return self.is_stuck or self._enough - self._too_few <= 1

    @property
    def next_count(self) -> int:
        if self.is_stuck:
            return self._too_few
        if self._enough > self._most:
            return min(self._most, max(1, 2 * self._too_few))
        return max(1, (self._too_few + self._enough) // 2) if self._enough - self._too_few > 1 else self._enough

    def learn(self, figures: SpecialistFigures) -> None:
        if self.is_done:
            return
        if not figures.misses:
            self._enough = figures.replicas
            return
        if self._enough > self._most:
            self._watch(figures)
        self._too_few = self._too_few if self.limit else figures.replicas

    def add(self, figures: SpecialistFigures) -> None:
        """Take more replicas, because the found number misses an objective beside those of the other specialists."""
        self._watch(figures)
        if not self.limit:
            grown = min(self._most, self._enough + self._increment)
            self._too_few = self._most if grown == self._enough else grown - 1
            self._enough = grown
            self._increment *= 2

    def _watch(self, figures: SpecialistFigures) -> None:
        """Notice whether the doubling helped. If it did not, and a request misses an objective even alone, or if two
        in a row did not, name the limit and go back to the number before."""
        before = self._before
        if before is None or has_helped(before, figures):
            self._before, self._num_stalls = figures, 0
            return
        self._num_stalls += 1
        self._best_alone = self._best_alone or self._alone(self.name)
        if self._best_alone.misses or self._num_stalls >= _MOST_STALLS:
            self._too_few = before.replicas
            self.limit = explain_limit(before, self._best_alone, self._requests)


def has_helped(before: SpecialistFigures, after: SpecialistFigures) -> bool:
    """Whether a missed objective is met or notably nearer."""
    still = {miss.objective: miss for miss in after.misses}
    return any(miss.objective not in still or _is_nearer(miss, still[miss.objective].found) for miss in before.misses)


def _is_nearer(miss: Miss, found: float) -> bool:
    if miss.objective == "answered":
        return (found > 0 and found >= miss.found * (1 + _HELPS)) or 1 - found <= (1 - miss.found) * (1 - _HELPS)
    return found <= miss.found * (1 - _HELPS)


def explain_limit(figures: SpecialistFigures, alone: SpecialistFigures, requests: Sequence[TraceRequest]) -> str:
    """Say what the specialist's misses come from, if not from too few replicas."""
    mine = [request for request in requests if request.specialist == figures.specialist]
    if alone.misses:
        return "no number of replicas is enough; " + "; ".join(_explain_alone(miss, mine) for miss in alone.misses)
    windows = [miss.target for miss in figures.misses if miss.objective != "answered"]
    window = max(windows, default=_ANSWER_SECONDS)
    burst = f"up to {_count_burst(mine, window):,} of its requests arrive within {window:.3g} s"
    verb = "does" if figures.replicas == 1 else "do"
    more = f"more than {pluralize(figures.replicas, 'replica')} {verb} not help"
    return f"{more}; the trace has bursts: {burst}, and those that meet on a replica wait for each other"


def _explain_alone(miss: Miss, requests: Sequence[TraceRequest]) -> str:
    if miss.objective == "answered":
        return f"requests end without an answer even alone: {miss}"
    if miss.objective.startswith("itl"):
        return f"the decode of one request alone is too slow: {miss}"
    lengths = sorted(request.prompt_tokens for request in requests)
    prompts = f"prompts have {lengths[len(lengths) // 2]:,} tokens (median) to {lengths[-1]:,}"
    return f"the prefill of one prompt alone is too slow: {miss}; {prompts}"


def _count_burst(requests: Sequence[TraceRequest], window: float) -> int:
    """Return the largest number of requests that arrive within a window of time."""
    most, first = 0, 0
    for last, request in enumerate(requests):
        while request.at - requests[first].at > window:
            first += 1
        most = max(most, last - first + 1)
    return most
