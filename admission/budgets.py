"""Rolling windows of counts, and the budgets for retries and shadows."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from heapq import heapify, heappop, heappush
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any, Literal, TypeVar

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
NoShadow = Literal["no_budget", "no_slot"]


@dataclass(frozen=True, slots=True)
class ShadowGrant:
    """Permission to send one shadow. `take` applies it; until then, nothing else may be taken, earned or ended."""

    group: str  # whose slot it uses
    payer: str | None  # the intent whose credit pays; "" for the reserve, None if no credit is needed
    displaced: str  # the group that must give a slot back; "" if a slot is free


class ShadowBudgets:
    """Limits shadows so that no intent starves another.

    Credit: every intent starts with credit for one shadow, earns `share` of a shadow with each of its own answered
    requests, and saves credit for at most `max_inflight` shadows. What it cannot save goes to a reserve of the same
    size, from which intents without credit are paid. At any time, an intent's paid shadows are at most 1 + `share` of
    its answered requests + those that the reserve paid; of all n intents together at most n + `share` of all answers.

    Slots: at most `max_inflight` shadows are in flight. Every shadow belongs to a group: its intent or, if it evaluates
    a lane and therefore needs no credit, that lane's specialist. If no slot is free, a group gets one from the group
    with the most slots, but only if that has at least two more."""

    def __init__(self, share: float, max_inflight: int, intents: Iterable[str]) -> None:
        self._credit: dict[str, int] = {}
        self._reserve = 0
        self._inflight: Counter[str] = Counter()  # by group
        self.num_inflight = 0
        self.retune(share, max_inflight, intents)

    @property
    def inflight(self) -> Mapping[str, int]:
        return self._inflight

    def credit(self, intent: str) -> float:
        """Return how many shadows the intent's own credit pays for; "" for the reserve."""
        return (self._credit.get(intent, 0) if intent else self._reserve) / _WHOLE

    def earn(self, intent: str) -> None:
        """Add the credit for an answered request. A request of an intent that was removed earns for the reserve."""
        earned = round(self._share * _WHOLE)
        if intent in self._credit:
            kept = min(earned, self._cap - self._credit[intent])
            self._credit[intent] += kept
            earned -= kept
        self._reserve = min(self._reserve + earned, self._cap)

    def plan(self, group: str, intent: str | None) -> ShadowGrant | NoShadow:
        """Return a grant for one shadow, or why none may be sent. Without an `intent`, no credit is needed."""
        payer = intent
        if intent is not None and self._credit.get(intent, 0) < _WHOLE:
            payer = ""
            if self._reserve < _WHOLE:
                return "no_budget"
        if self.num_inflight < self._max_inflight:
            return ShadowGrant(group, payer, "")
        largest = max(self._inflight, key=lambda each: (self._inflight[each], each), default="")
        can_displace = self.num_inflight == self._max_inflight and self._inflight[largest] > self._inflight[group] + 1
        return ShadowGrant(group, payer, largest) if can_displace else "no_slot"

    def take(self, grant: ShadowGrant) -> None:
        """Charge the grant. The shadow is in flight until `done`; the displaced one, if any, is `done` already."""
        if grant.payer:
            self._credit[grant.payer] -= _WHOLE
        elif grant.payer is not None:
            self._reserve -= _WHOLE
        self._inflight[grant.group] += 1
        self.num_inflight += 1

    def done(self, group: str) -> None:
        if not self._inflight[group]:
            raise ValueError(f"no shadow of {group} is in flight")
        self.num_inflight -= 1
        self._inflight[group] -= 1
        if not self._inflight[group]:
            del self._inflight[group]

    def retune(self, share: float, max_inflight: int, intents: Iterable[str]) -> None:
        """Apply new limits. Shadows in flight continue; credit beyond the new limits is lost."""
        if not 0 <= share <= 1:
            raise ValueError(f"share must be in [0, 1], got {share:g}")
        if max_inflight < 0:
            raise ValueError(f"max_inflight must not be negative, got {max_inflight}")
        self._share, self._max_inflight = share, max_inflight
        self._cap = max(1, max_inflight) * _WHOLE if share else 0
        first = _WHOLE if share else 0
        self._credit = {intent: min(self._credit.get(intent, first), self._cap) for intent in intents}
        self._reserve = min(self._reserve, self._cap)
