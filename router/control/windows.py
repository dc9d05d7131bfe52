"""What was counted of late, by series and key: here, and wherever else the store is shared."""

from collections import Counter
from collections.abc import Iterable
from math import inf

from admission.window import Counts, Window
from octet.store import Bucket, Store

CORRECTNESS = "correctness"
"""Judged answers, by lane: good passed, bad failed."""
DEMAND = "demand"
"""Requests, by specialist and intent: good were taken, bad refused for want of room."""


class Judged:
    """Judged answers by lane."""

    def __init__(self, store: Store, span: float) -> None:
        self._store = store
        self.span = span
        self._windows: dict[str, Window] = {}

    def add(self, lane_id: str, now: float, *, passed: bool) -> None:
        start = self._window(lane_id).add(now, good=passed, bad=not passed)
        self._store.count(Bucket(CORRECTNESS, lane_id, start, int(passed), int(not passed)))

    def put(self, buckets: Iterable[Bucket]) -> None:
        """Sums, as the store has them."""
        for bucket in buckets:
            self._window(bucket.key).put(bucket.start, bucket.good, bucket.bad)

    def counts(self, lane_id: str, now: float, since: float = 0.0) -> Counts:
        window = self._windows.get(lane_id)
        if window is None:
            return Counts()
        return window.counts_since(since, now) if since > now - self.span else window.counts(now)

    def begin_anew(self, span: float, buckets: Iterable[Bucket]) -> None:
        self.span = span
        self._windows.clear()
        self.put(buckets)

    def tidy(self, now: float) -> None:
        """Lanes that nothing is known of any more take no room."""
        for lane_id, window in list(self._windows.items()):
            window.expire(now)
            if not len(window):
                del self._windows[lane_id]

    def _window(self, lane_id: str) -> Window:
        window = self._windows.get(lane_id)
        if window is None:
            window = self._windows[lane_id] = Window(self.span)
        return window


class Demand:
    """Requests by specialist and intent. Only while somebody refuses is anything of it shared, with what came in the
    span before: a share of nothing need not be known elsewhere."""

    def __init__(self, store: Store, span: float) -> None:
        self._store = store
        self.span = span
        self._windows: dict[str, dict[str, Window]] = {}
        """By specialist, then by intent."""
        self._refused_at: dict[str, float] = {}
        self._unshared: dict[str, Counter[tuple[str, int]]] = {}
        """By specialist: requests that were served, by intent and bucket. The store's sums take the place of what is
        counted here: these are added to them until it has heard of them, which is when somebody refuses."""

    def add(self, specialist: str, intent: str, now: float, *, served: bool) -> None:
        if not served:
            self._refused_at[specialist] = now
        start = self._window(specialist, intent).add(now, good=served, bad=not served)
        if now - self._refused_at.get(specialist, -inf) <= self.span:
            self._share(specialist, now)
            self._store.count(Bucket(DEMAND, f"{specialist}|{intent}", start, int(served), int(not served)))
        else:
            self._keep(specialist, intent, start, now)

    def put(self, buckets: Iterable[Bucket], now: float) -> None:
        """Sums, as the store has them; what it has not heard of from here comes on top. Where somebody refuses, it
        hears of that now: the share is right on both sides."""
        told = [each for each in buckets if each.start >= now - self.span]
        for bucket in told:
            specialist, _, intent = bucket.key.partition("|")
            own = self._unshared.get(specialist, Counter())[intent, bucket.start]
            self._window(specialist, intent).put(bucket.start, bucket.good + own, bucket.bad)
        for bucket in told:
            if bucket.bad:
                specialist, _, _ = bucket.key.partition("|")
                self._refused_at[specialist] = max(bucket.start, self._refused_at.get(specialist, -inf))
                self._share(specialist, now)

    def counts(self, specialist: str, now: float) -> Counts:
        return sum((window.counts(now) for window in self._windows.get(specialist, {}).values()), Counts())

    def begin_anew(self, span: float) -> None:
        self.span = span
        self._windows.clear()
        self._unshared.clear()

    def _keep(self, specialist: str, intent: str, start: int, now: float) -> None:
        kept = self._unshared.setdefault(specialist, Counter())
        if (intent, start) not in kept:
            for old in [each for each in kept if each[1] < now - self.span]:
                del kept[old]
        kept[intent, start] += 1

    def _share(self, specialist: str, now: float) -> None:
        for (intent, start), good in self._unshared.pop(specialist, {}).items():
            if start >= now - self.span:
                self._store.count(Bucket(DEMAND, f"{specialist}|{intent}", start, good, 0))

    def _window(self, specialist: str, intent: str) -> Window:
        by_intent = self._windows.setdefault(specialist, {})
        if intent not in by_intent:
            by_intent[intent] = Window(self.span)
        return by_intent[intent]
