"""How often something went well of late: counts in buckets, each of which is forgotten as a whole."""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import ceil, isfinite

_USUAL_BUCKETS = 288
"""Of a window: five minutes each where it is a day."""
_MOST_BUCKETS = 4096
"""Kept at once, whatever comes: more than any window has, so that one outlives a change of its grain."""


@dataclass(frozen=True, slots=True)
class Counts:
    good: int = 0
    bad: int = 0

    @property
    def total(self) -> int:
        return self.good + self.bad

    @property
    def rate(self) -> float | None:
        """Of the good ones; None where nothing was counted."""
        return self.good / self.total if self.total else None

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.good + other.good, self.bad + other.bad)


def grain_of(span: float) -> int:
    """Seconds in a bucket of a window of `span` seconds."""
    return max(1, ceil(span / _USUAL_BUCKETS))


class Window:
    """The last `span` seconds. A bucket counts as a whole from its start on until it lies a span behind, so that
    nothing older is counted, and of the oldest grain some not any more. One that lies ahead by less than a span counts
    too: another clock, or this one before it was set back. One that lies further ahead is nonsense and is forgotten."""

    def __init__(self, span: float, grain: int | None = None) -> None:
        if not (isfinite(span) and span > 0):
            raise ValueError(f"span must be a positive number of seconds, got {span:g}")
        self.span = span
        self.grain = grain_of(span) if grain is None else grain
        least = max(1, ceil(2 * span / _MOST_BUCKETS))
        if self.grain < least:
            raise ValueError(f"grain must be at least {least} s, got {self.grain}")
        self._buckets: dict[int, Counts] = {}
        self._starts: list[int] = []
        """A heap of the buckets' keys."""
        self._latest: int | None = None
        self._good = self._bad = 0

    def __len__(self) -> int:
        """Buckets that are kept."""
        return len(self._buckets)

    def start_of(self, at: float) -> int:
        return int(at // self.grain) * self.grain

    def put(self, start: int, good: int, bad: int) -> None:
        """The bucket holds just so many, whatever was known of it."""
        self._set(start, Counts(good, bad))

    def add(self, at: float, good: int = 0, bad: int = 0) -> int:
        """So many more. Returns the start of their bucket."""
        start = self.start_of(at)
        self._set(start, self.bucket(start) + Counts(good, bad))
        return start

    def bucket(self, start: int) -> Counts:
        return self._buckets.get(start, Counts())

    def counts(self, now: float) -> Counts:
        self.expire(now)
        return Counts(self._good, self._bad)

    def counts_since(self, since: float, now: float) -> Counts:
        """Of the buckets that end after `since`: all that came since, and up to a grain of what came before."""
        self.expire(now)
        return sum((counts for start, counts in self._buckets.items() if start + self.grain > since), Counts())

    def expire(self, now: float) -> None:
        while self._starts and self._starts[0] < now - self.span:
            self._forget_oldest()
        if self._latest is not None and self._latest > now + self.span:
            self._forget_after(now + self.span)

    def _set(self, start: int, counts: Counts) -> None:
        if start not in self._buckets:
            heappush(self._starts, start)
            self._latest = start if self._latest is None else max(start, self._latest)
        had = self.bucket(start)
        self._buckets[start] = counts
        self._good += counts.good - had.good
        self._bad += counts.bad - had.bad
        if len(self._buckets) > _MOST_BUCKETS:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        gone = self._buckets.pop(heappop(self._starts))
        self._good -= gone.good
        self._bad -= gone.bad

    def _forget_after(self, end: float) -> None:
        self._buckets = {start: counts for start, counts in self._buckets.items() if start <= end}
        self._starts = list(self._buckets)
        heapify(self._starts)
        self._latest = max(self._starts, default=None)
        self._good = sum(counts.good for counts in self._buckets.values())
        self._bad = sum(counts.bad for counts in self._buckets.values())
