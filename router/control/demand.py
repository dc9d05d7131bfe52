"""Counts of requests by specialist, intent and class, shared with other routers."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from math import inf
from typing import Literal, NamedTuple

from admission.budgets import RollingWindow
from admission.demand import DemandClass, DemandCounts, IntentDemand
from router.store.rows import CountBucket
from router.store.store import Store

DEMAND = "demand"  # requests by specialist, intent and class: `good` are accepted, `bad` refused for lack of capacity
WITHHELD = "withheld"  # `good` are requests that escalation kept away from the specialist
USUAL = "usual"  # requests by specialist and intent, of minutes in which the specialist had room for all of them
USUAL_SECONDS = 86_400.0  # how long the store keeps usual demand
_USUAL_MINUTES = 60
_MINUTE = 60
DemandOutcome = Literal["accepted", "refused", "withheld"]


class _Cell(NamedTuple):
    series: str
    intent: str
    kind: DemandClass

    def key(self, specialist: str) -> str:
        return f"{specialist}|{self.intent}|{self.kind.priority}|{self.kind.confidence}"

    @classmethod
    def parse(cls, series: str, key: str) -> "tuple[str, _Cell] | None":
        """Return the specialist and the cell; None for a key of another version."""
        specialist, *rest = key.split("|")
        if len(rest) != 3 or not all(text.removeprefix("-").isdecimal() for text in rest[1:]):
            return None
        kind = DemandClass(int(rest[1]), int(rest[2]))
        return (specialist, cls(series, rest[0], kind)) if kind.is_valid else None


class DemandWindows:
    """Counts requests in the last `span` seconds. If a request is refused or withheld, the counts of its specialist are
    shared with other routers for the next `span` seconds, including requests accepted before."""

    def __init__(self, store: Store, span: float) -> None:
        self._store = store
        self.span = span
        self.usual = UsualDemand(store)
        self._windows = defaultdict[str, dict[_Cell, RollingWindow]](dict)  # by specialist
        self._pressed_at: dict[str, float] = {}  # the last refused or withheld request, by specialist
        # By specialist: accepted requests by cell and bucket that the store does not know yet. They are added to the
        # store's sums until a refusal makes them shared.
        self._unshared = defaultdict[str, Counter[tuple[_Cell, int]]](Counter)

    def add(self, specialist: str, intent: str, kind: DemandClass, outcome: DemandOutcome, now: float) -> None:
        self.usual.add(specialist, intent, now)
        if outcome != "accepted":
            self._press(specialist, now)
        cell = _Cell(WITHHELD if outcome == "withheld" else DEMAND, intent, kind)
        good, bad = int(outcome != "refused"), int(outcome == "refused")
        start = self._window(specialist, cell).add(now, good=good, bad=bad)
        if now - self._pressed_at.get(specialist, -inf) <= self.span:
            self._share(specialist, now)
            self._store.count(CountBucket(cell.series, cell.key(specialist), start, good, bad))
            return
        kept = self._unshared[specialist]
        if (cell, start) not in kept:
            for old in [each for each in kept if each[1] < now - self.span]:
                del kept[old]
        kept[cell, start] += 1

    def put(self, buckets: Iterable[CountBucket], now: float) -> None:
        """Set each bucket to the store's sum plus this router's unshared count. If a sum contains refused or withheld
        requests, also store the specialist's unshared counts, so that every router sees the right proportions."""
        known = [each for each in buckets if each.series in (DEMAND, WITHHELD) and each.start >= now - self.span]
        pressed: dict[str, float] = {}
        for bucket in known:
            if (parsed := _Cell.parse(bucket.series, bucket.key)) is None:
                continue
            specialist, cell = parsed
            own = self._unshared[specialist][cell, bucket.start]
            self._window(specialist, cell).put(bucket.start, bucket.good + own, bucket.bad)
            if bucket.bad or (bucket.series == WITHHELD and bucket.good):
                pressed[specialist] = max(bucket.start, pressed.get(specialist, -inf))
        for specialist, at in pressed.items():
            self._press(specialist, at)
            self._share(specialist, now)

    def view(self, specialist: str, now: float) -> dict[str, IntentDemand]:
        """Return the demand by intent."""
        found = defaultdict[str, dict[DemandClass, DemandCounts]](dict)
        windows = self._windows[specialist]
        for cell, window in list(windows.items()):
            counts = window.counts(now)
            if not len(window):
                del windows[cell]
                continue
            is_withheld = cell.series == WITHHELD
            new = DemandCounts(withheld=counts.good) if is_withheld else DemandCounts(counts.good, counts.bad)
            found[cell.intent][cell.kind] = found[cell.intent].get(cell.kind, DemandCounts()) + new
        usual = self.usual.rates(specialist, now)
        return {name: IntentDemand(found[name], self.span * usual.get(name, 0.0)) for name in sorted(found)}

    def reset(self, span: float) -> None:
        self.span = span
        self._windows.clear()
        self._unshared.clear()

    def _window(self, specialist: str, cell: _Cell) -> RollingWindow:
        windows = self._windows[specialist]
        if cell not in windows:
            windows[cell] = RollingWindow(self.span)
        return windows[cell]

    def _press(self, specialist: str, at: float) -> None:
        self._pressed_at[specialist] = max(at, self._pressed_at.get(specialist, -inf))
        self.usual.press(specialist, at)

    def _share(self, specialist: str, now: float) -> None:
        for (cell, start), good in self._unshared.pop(specialist, {}).items():
            if start >= now - self.span and good:
                self._store.count(CountBucket(cell.series, cell.key(specialist), start, good, 0))


class UsualDemand:
    """The usual rate of each intent's requests to a specialist: the mean of the last 60 minutes with requests in which
    none was refused or withheld. However long the specialist refuses, it is not forgotten. Every router adds its own
    requests when a minute ends."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._minutes = defaultdict[str, dict[int, Counter[str]]](dict)  # by specialist: requests by minute and intent
        self._running: dict[str, tuple[int, Counter[str]]] = {}  # by specialist: the present minute, and its requests
        self._pressed_at: dict[str, float] = {}

    def add(self, specialist: str, intent: str, now: float) -> None:
        self._end_minute(specialist, now)
        _, counts = self._running.setdefault(specialist, (int(now // _MINUTE) * _MINUTE, Counter()))
        counts[intent] += 1

    def press(self, specialist: str, at: float) -> None:
        """Note that a request was refused or withheld."""
        self._pressed_at[specialist] = max(at, self._pressed_at.get(specialist, -inf))

    def put(self, buckets: Iterable[CountBucket], now: float) -> None:
        changed = set[str]()
        for bucket in buckets:
            specialist, _, intent = bucket.key.partition("|")
            if bucket.series == USUAL:
                self._minutes[specialist].setdefault(bucket.start, Counter())[intent] = bucket.good
                changed.add(specialist)
        for specialist in changed:
            self._drop_minutes(specialist, now)

    def rates(self, specialist: str, now: float) -> dict[str, float]:
        """Return the usual requests per second by intent."""
        self._end_minute(specialist, now)
        self._drop_minutes(specialist, now)
        minutes = self._minutes[specialist].values()
        total = sum(minutes, Counter[str]())
        return {intent: num / (len(minutes) * _MINUTE) for intent, num in total.items()}

    def _end_minute(self, specialist: str, now: float) -> None:
        minute, counts = self._running.get(specialist, (0, Counter[str]()))
        if not counts or 0 <= now - minute < _MINUTE:
            return
        del self._running[specialist]
        if self._pressed_at.get(specialist, -inf) >= minute:
            return
        self._minutes[specialist].setdefault(minute, Counter()).update(counts)
        for intent, num in counts.items():
            self._store.count(CountBucket(USUAL, f"{specialist}|{intent}", minute, num, 0))

    def _drop_minutes(self, specialist: str, now: float) -> None:
        """Drop the oldest minutes beyond 60, and those far in the future, which a wrong clock has counted."""
        minutes = self._minutes[specialist]
        future = [minute for minute in minutes if minute > now + _USUAL_MINUTES * _MINUTE]
        past = sorted(minutes.keys() - set(future))
        for minute in (*future, *past[:-_USUAL_MINUTES]):
            del minutes[minute]
