"""Counts of outcomes in a rolling window, shared with other routers through the store."""

from collections.abc import Iterable

from admission.budgets import Counts, RollingWindow
from router.store.rows import CountBucket
from router.store.store import Store

_LANE_ID_PARTS = 3  # a lane's id has three parts between `|`


class OutcomeWindows:
    """Counts good and bad answers by lane and kind in the last `span` seconds. A kind is a verifier's name, or a signal
    of a collapse. The key of a stored bucket is the lane's id and, after another `|`, the kind."""

    def __init__(self, store: Store, span: float, series: str) -> None:
        self._store = store
        self._series = series
        self.span = span
        self._windows: dict[str, dict[str, RollingWindow]] = {}  # by lane id, then by kind

    def add(self, lane_id: str, kind: str, now: float, *, passed: bool) -> None:
        start = self._window(lane_id, kind).add(now, good=passed, bad=not passed)
        key = f"{lane_id}|{kind}" if kind else lane_id
        self._store.count(CountBucket(self._series, key, start, int(passed), int(not passed)))

    def put(self, buckets: Iterable[CountBucket]) -> None:
        for bucket in buckets:
            parts = bucket.key.split("|", _LANE_ID_PARTS)
            lane_id, kind = "|".join(parts[:_LANE_ID_PARTS]), "".join(parts[_LANE_ID_PARTS:])
            self._window(lane_id, kind).put(bucket.start, bucket.good, bucket.bad)

    def counts_by_kind(self, lane_id: str, now: float, since: float = 0.0) -> dict[str, Counts]:
        found = {
            name: window.counts_since(since, now) if since > now - self.span else window.counts(now)
            for name, window in self._windows.get(lane_id, {}).items()
        }
        return {name: counts for name, counts in found.items() if counts.total}

    def counts(self, lane_id: str, now: float, since: float = 0.0) -> Counts:
        return sum(self.counts_by_kind(lane_id, now, since).values(), Counts())

    def reset(self, span: float, buckets: Iterable[CountBucket]) -> None:
        self.span = span
        self._windows.clear()
        self.put(buckets)

    def tidy(self, now: float) -> None:
        for lane, windows in list(self._windows.items()):
            for name, window in list(windows.items()):
                window.expire(now)
                if not len(window):
                    del windows[name]
            if not windows:
                del self._windows[lane]

    def _window(self, lane_id: str, kind: str) -> RollingWindow:
        windows = self._windows.setdefault(lane_id, {})
        if kind not in windows:
            windows[kind] = RollingWindow(self.span)
        return windows[kind]
