"""What a request was told when it was let in, between two bounds: nobody else comes, or as many as are asking."""

from typing import NamedTuple

from admission.forecast.recent import Recent

_LOADS = (0.5, 1.0, 2.0, 4.0)
_HORIZONS = (0.5, 1.5, 4.0)
"""Seconds."""
_ENOUGH = 4
_MOST_SHARE = 1.5
_WORTHWHILE = 0.05
"""Bounds that are closer to each other, as a share, teach nothing."""


class Bound(NamedTuple):
    """Seconds."""

    wait: float
    first: float
    """To the first token."""
    pace: float
    """For each token behind it."""

    def total(self, num_tokens: float) -> float:
        return self.first + self.pace * max(0.0, num_tokens - 1)


class Promise(NamedTuple):
    made_at: float
    load: float
    """Seconds of work a second that were asked for."""
    quiet: Bound
    busy: Bound
    share: float
    """Of the way from quiet to busy."""

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


class Hindsight:
    """How much of what could come between really did, by how much was asked for and by how far it was to the end:
    who is nearly done is overtaken by nobody."""

    def __init__(self) -> None:
        self._seen = [[Recent(32) for _ in range(len(_HORIZONS) + 1)] for _ in range(len(_LOADS) + 1)]

    def share(self, load: float, horizon: float) -> float:
        """Until enough was seen, as much as is asked for beyond what can be done, growing with the horizon."""
        seen = self._of(load, horizon)
        middle = seen.quantile(0.5) if len(seen) >= _ENOUGH else None
        if middle is not None:
            return middle
        return min(1.0, max(0.0, load - 1.0)) * horizon / (horizon + _HORIZONS[1])

    def learn(self, promise: Promise, num_tokens: int, took: float) -> None:
        quiet, busy = promise.quiet.total(num_tokens), promise.busy.total(num_tokens)
        if busy - quiet > _WORTHWHILE * quiet:
            share = (took - quiet) / (busy - quiet)
            self._of(promise.load, quiet).add(min(_MOST_SHARE, max(0.0, share)))

    def _of(self, load: float, horizon: float) -> Recent:
        level = sum(load >= each for each in _LOADS)
        return self._seen[level][sum(horizon >= each for each in _HORIZONS)]
