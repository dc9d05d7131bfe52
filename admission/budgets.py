"""Rolling windows of counts, and the budgets for retries and shadows."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from heapq import heapify, heappop, heappush
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_NUM_BUCKETS = 288  # buckets in a window: a window of one day has buckets of five minutes
_MAX_BUCKETS = 4096  # more than any window needs, so that a window stays complete if its bucket size changes


@dataclass(frozen=True, slots=True)
class Counts:
    good: int = 0
    bad: int = 0

    @property
    def total(self) -> int:
        return self.good + self.bad

    @property
    def rate(self) -> float | None:
        return self.good / self.total if self.total else None

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.good + other.good, self.bad + other.bad)


def bucket_seconds(span: float) -> int:
    return max(1, ceil(span / _NUM_BUCKETS))


class RollingWindow:
    """Counts of the last `span` seconds, in buckets of `grain` seconds. A bucket is dropped once its start is more than
    `span` seconds old. A bucket up to `span` seconds in the future is counted, because clocks differ and may be set
    back; a bucket further in the future is dropped."""

    def __init__(self, span: float, grain: int | None = None) -> None:
        if not (isfinite(span) and span > 0):
            raise ValueError(f"span must be a positive number of seconds, got {span:g}")
        self.span = span
        self.grain = bucket_seconds(span) if grain is None else grain
        least = max(1, ceil(2 * span / _MAX_BUCKETS))
        if self.grain < least:
            raise ValueError(f"grain must be at least {least} s, got {self.grain} s")
        self._buckets: dict[int, Counts] = {}
        self._starts: list[int] = []  # a heap of the buckets' keys
        self._latest: int | None = None
        self._good = self._bad = 0

    def __len__(self) -> int:
        return len(self._buckets)

    def put(self, start: int, good: int, bad: int) -> None:
        self._set(start, Counts(good, bad))

    def add(self, at: float, good: int = 0, bad: int = 0) -> int:
        """Add the counts to the bucket that includes the time `at`. Return the start of the bucket."""
        start = int(at // self.grain) * self.grain
        self._set(start, self.bucket(start) + Counts(good, bad))
        return start

    def bucket(self, start: int) -> Counts:
        return self._buckets.get(start, Counts())

    def counts(self, now: float) -> Counts:
        self.expire(now)
        return Counts(self._good, self._bad)

    def counts_since(self, since: float, now: float) -> Counts:
        """Return the sum of the buckets that end after `since`. The first of them may begin before `since`."""
        self.expire(now)
        return sum((counts for start, counts in self._buckets.items() if start + self.grain > since), Counts())

    def expire(self, now: float) -> None:
        while self._starts and self._starts[0] < now - self.span:
            self._drop_oldest()
        if self._latest is not None and self._latest > now + self.span:
            self._drop_after(now + self.span)

    def _set(self, start: int, counts: Counts) -> None:
        if start not in self._buckets:
            heappush(self._starts, start)
            self._latest = start if self._latest is None else max(start, self._latest)
        had = self.bucket(start)
        self._buckets[start] = counts
        self._good += counts.good - had.good
        self._bad += counts.bad - had.bad
        if len(self._buckets) > _MAX_BUCKETS:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        gone = self._buckets.pop(heappop(self._starts))
        self._good -= gone.good
        self._bad -= gone.bad

    def _drop_after(self, end: float) -> None:
        self._buckets = {start: counts for start, counts in self._buckets.items() if start <= end}
        self._starts = list(self._buckets)
        heapify(self._starts)
        self._latest = max(self._starts, default=None)
        self._good = sum(counts.good for counts in self._buckets.values())
        self._bad = sum(counts.bad for counts in self._buckets.values())


def format_pass_rate(counts: Counts) -> str:
    return f"{counts.good} of {counts.total} passed" + (f" ({counts.rate:.1%})" if counts.rate is not None else "")


_RecordT = TypeVar("_RecordT", bound="DataclassInstance")


def restore_record(kind: type[_RecordT], body: Mapping[str, Any], name: str) -> _RecordT:
    """Restore a stored dataclass. Raises ValueError if a field is missing; unknown fields are ignored."""
    try:
        return kind(**{field.name: body[field.name] for field in fields(kind)})
    except KeyError as missing:
        raise ValueError(f"{name} lacks the key {missing}") from None


class RetryBudget:
    """Limits retries in proportion to traffic, so that they cannot overload a failing specialist.

    Each answer earns `ratio` of a retry, saved up to `burst`. In addition, each arriving request earns `share` of a
    retry, saved up to `share` of the requests in flight: if a replica fails with many requests in flight, many of them
    can be retried. At any time retries <= burst + ratio * answered + share * entered."""

    def __init__(self, burst: float, ratio: float, share: float) -> None:
        if min(burst, ratio, share) < 0:
            raise ValueError(f"burst, ratio and share must not be negative, got {burst:g}, {ratio:g} and {share:g}")
        self._burst = burst
        self._ratio = ratio
        self._share = share
        self.tokens = burst
        self.credit = 0.0
        self._num_inflight = 0

    def enter(self) -> None:
        """Count an arriving request. It is in flight until `leave`."""
        self._num_inflight += 1
        self.credit += self._share

    def leave(self) -> None:
        self._num_inflight -= 1
        self.credit = min(self.credit, self._share * self._num_inflight)

    def take(self) -> bool:
        """Return whether a retry may be sent. If so, the retry is charged to the budget."""
        if self.tokens >= 1:
            self.tokens -= 1
        elif self.credit >= 1:
            self.credit -= 1
        else:
            return False
        return True

    def answered(self) -> None:
        self.tokens = min(self.tokens + self._ratio, self._burst)


_WHOLE = 1_000_000  # credit for one shadow: an integer, so that shares add up without rounding errors


class ShadowBudget:
    """Limits shadows to `share` of the answered requests. The budget starts with credit for one shadow and saves credit
    for at most `max_inflight` shadows. At any time counted shadows <= 1 + share * answered."""

    def __init__(self, share: float, max_inflight: int) -> None:
        """`share` is the maximum number of shadows per answered request."""
        self._parts = _WHOLE
        self.inflight = 0
        self.retune(share, max_inflight)

    @property
    def tokens(self) -> float:
        return self._parts / _WHOLE

    def earn(self) -> None:
        """Add the credit for an answered request."""
        self._parts = min(self._parts + round(self._share * _WHOLE), self._cap)

    def take(self, *, counted: bool = True) -> bool:
        """Return whether a shadow may be sent now. If so, it is in flight until `done`. Only `counted` shadows use
        credit; those of fresh and of demoted lanes do not, because their results are needed."""
        if self.inflight >= self._max_inflight or (counted and self._parts < _WHOLE):
            return False
        self.inflight += 1
        if counted:
            self._parts -= _WHOLE
        return True

    def done(self) -> None:
        if not self.inflight:
            raise ValueError("no shadow is in flight")
        self.inflight -= 1

    def retune(self, share: float, max_inflight: int) -> None:
        """Apply new limits. Shadows in flight continue; credit beyond the new limits is lost."""
        if not 0 <= share <= 1:
            raise ValueError(f"share must be in [0, 1], got {share:g}")
        if max_inflight < 0:
            raise ValueError(f"max_inflight must not be negative, got {max_inflight}")
        self._share, self._max_inflight = share, max_inflight
        self._parts = min(self._parts, self._cap)

    @property
    def _cap(self) -> int:
        return max(1, self._max_inflight) * _WHOLE if self._share else 0
