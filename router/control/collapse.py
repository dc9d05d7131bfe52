"""Watches the newest judged answers of every lane for a collapse. Routers share what they saw through the store."""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from itertools import dropwhile

from admission.budgets import Counts
from admission.collapse import DEGENERATE, SPAN, Collapse, RecentAnswers, find_collapse
from router.control.windows import OutcomeWindows
from router.store.rows import CountBucket
from router.store.store import Store

SIGNAL = "signal"  # judged answers by lane and signal: `bad` counts those that are, for example, degenerate
RECENT = "recent"  # the newest of them by second, while a lane has bad ones


class CollapseMonitor:
    def __init__(self, store: Store, span: float) -> None:
        self._store = store
        self._past = OutcomeWindows(store, span, SIGNAL)  # by lane id and signal
        self._recent = defaultdict[str, defaultdict[str, RecentAnswers]](lambda: defaultdict(RecentAnswers))
        self._tenants = defaultdict[str, deque[tuple[str, bool]]](lambda: deque(maxlen=SPAN))  # of the newest answers
        self._what: dict[str, str] = {}  # by lane id: what its last degenerate answer was like

    def add(self, lane_id: str, tenant: str, signals: Mapping[str, bool], what: str, now: float) -> None:
        """Count a judged answer. `signals` tells for each signal whether the answer is bad. If only one tenant's
        answers are degenerate, it asks for them: they do not count after other tenants got good ones."""
        bad, newest = signals.get(DEGENERATE, False), self._tenants[lane_id]
        newest.append((tenant, bad))
        if bad and _is_alone(tenant, newest):
            return
        if what:
            self._what[lane_id] = what
        for signal, bad in signals.items():
            key = _key(lane_id, signal)
            self._past.add(lane_id, signal, now, passed=not bad)
            if self._recent[lane_id][signal].add(now, bad=bad):
                self._store.count(CountBucket(RECENT, key, int(now), int(not bad), int(bad)))

    def put(self, buckets: Iterable[CountBucket], now: float) -> None:
        """Take the sums of all routers from the store."""
        for bucket in buckets:
            if bucket.series == SIGNAL:
                self._past.put((bucket,))
            elif bucket.series == RECENT:
                lane_id, _, signal = bucket.key.rpartition("|")
                self._recent[lane_id][signal].put(bucket.start, Counts(bucket.good, bucket.bad), now)

    def recent(self, lane_id: str, now: float) -> dict[str, Counts]:
        """Return the newest answers of a lane by signal."""
        if lane_id not in self._recent:
            return {}
        return {signal: answers.counts(now) for signal, answers in self._recent[lane_id].items()}

    def is_clear(self, lane_id: str, now: float) -> bool:
        """Whether none of the newest answers is degenerate."""
        return not self.recent(lane_id, now).get(DEGENERATE, Counts()).bad

    def find(self, lane_id: str, measure: str, now: float, *, suspect: bool = False) -> Collapse | None:
        """Return why the lane has collapsed, or with `suspect` is suspicious; None if it is not. `measure` is the lane
        whose past is usual: with the lane itself, the newest answers do not count as past."""
        recent = self.recent(lane_id, now)
        past = self._past.counts_by_kind(measure, now)
        if measure == lane_id:
            past = {signal: _without(counts, recent.get(signal, Counts())) for signal, counts in past.items()}
        found = find_collapse(recent, past, suspect=suspect)
        if found is None or found.signal != DEGENERATE:
            return found
        return found.described(self._what.get(lane_id, ""))

    def reset(self, span: float, buckets: Iterable[CountBucket], now: float) -> None:
        self._past.reset(span, ())
        self._recent.clear()
        self._tenants.clear()
        self.put(buckets, now)

    def tidy(self, now: float) -> None:
        """Forget lanes without judged answers in the window."""
        self._past.tidy(now)
        for lane_id in list(self._recent):
            if not self._past.counts(lane_id, now).total:
                del self._recent[lane_id]
                self._what.pop(lane_id, None)
                self._tenants.pop(lane_id, None)


def _key(lane_id: str, signal: str) -> str:
    return f"{lane_id}|{signal}"


def _is_alone(tenant: str, newest: Iterable[tuple[str, bool]]) -> bool:
    """Whether, since the first bad answer to the tenant, others got answers and none of them was bad."""
    others = [bad for who, bad in dropwhile(lambda each: each != (tenant, True), newest) if who != tenant]
    return bool(others) and not any(others)


def _without(past: Counts, recent: Counts) -> Counts:
    return Counts(max(0, past.good - recent.good), max(0, past.bad - recent.bad))
