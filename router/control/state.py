"""Shared state of the control plane: configuration, documents, counts, replicas."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import inf

from admission.budgets import Counts, RollingWindow
from admission.knobs import UNSPECIFIED_INTENT
from admission.lanes import AdapterRef, LaneRecord, SpecialistLanes, lane_id
from octet.config.ensemble import Ensemble, SpecialistConfig
from router.control.audit import DocumentCache, unknown_name
from router.control.replicas import FleetReplicas, ObservedReplica
from router.store.rows import CountBucket
from router.store.store import Store

BREAKER, KNOB, LANES, LADDER, REPLICA = "breaker", "knob", "lanes", "ladder", "replica"  # kinds of documents
RESTARTS = "restarts"  # another kind: how often a replica restarted, and why it last did
CORRECTNESS = "correctness"  # evaluated answers by lane: `good` counts passed answers, `bad` failed ones
DEMAND = "demand"  # requests by specialist and intent: `good` are accepted, `bad` refused for lack of capacity


class SharedState:
    def __init__(
        self, ensemble: Ensemble, store: Store, replicas: FleetReplicas, wall: Callable[[], float] = time.time
    ) -> None:
        self._wall = wall
        self.ensemble = ensemble
        self.documents = DocumentCache()
        self.correctness = CorrectnessWindows(store, ensemble.correctness.window)
        self.demand = DemandWindows(store, ensemble.escalation.sustain)
        self.replicas = replicas
        self._all: dict[str, list[ObservedReplica]] = {}
        self._reachable: dict[str, list[ObservedReplica]] = {}
        # by replica and load name: the digest of an adapter that the replica cannot load, or finds changed at its path
        self.unloadable: dict[tuple[str, str], str] = {}

    def record_outcome(self, lane_id: str, outcome: str) -> None:
        if lane_id and outcome in ("passed", "failed"):
            self.correctness.add(lane_id, self._wall(), passed=outcome == "passed")

    def record_accepted(self, specialist: str, intent: str) -> None:
        self.demand.add(specialist, intent or UNSPECIFIED_INTENT, self._wall(), accepted=True)

    def record_refused(self, specialist: str, intent: str) -> None:
        """Count a request that was refused for lack of capacity."""
        self.demand.add(specialist, intent or UNSPECIFIED_INTENT, self._wall(), accepted=False)

    def refresh(self) -> None:
        self._all, self._reachable = {}, {}
        for each in self.replicas.observe():
            self._all.setdefault(each.specialist, []).append(each)
            if each.linked:
                self._reachable.setdefault(each.specialist, []).append(each)

    def specialist(self, name: str) -> SpecialistConfig:
        if name not in self.ensemble.names:
            raise unknown_name("specialist", name, self.ensemble.names)
        return self.ensemble.specialist(name)

    def lanes(self, specialist: str) -> SpecialistLanes | None:
        return self.documents.read(LANES, specialist, SpecialistLanes.from_body)

    def serving_lane(self, specialist: str) -> tuple[str, float]:
        """Return the id of the serving lane and the time it began; ("", 0.0) until it is known."""
        lanes = self.lanes(specialist)
        return ("", 0.0) if lanes is None else (lane_id(specialist, lanes.serving), lanes.serving.since)

    def reachable(self, specialist: str) -> Sequence[ObservedReplica]:
        return self._reachable.get(specialist, ())

    def all_replicas(self, specialist: str) -> Sequence[ObservedReplica]:
        return self._all.get(specialist, ())

    def note_loaded(self, replica: ObservedReplica) -> None:
        for name, digest in replica.adapters.items():
            if self.unloadable.get((replica.name, name)) == digest:
                del self.unloadable[replica.name, name]

    def can_serve(self, replica: ObservedReplica, lane: LaneRecord) -> bool:
        """Return whether the replica holds the lane's adapters or can load them."""
        return can_serve_lane(replica, lane) and not self._has_lost(replica, lane)

    def is_lost(self, specialist: str, lane: LaneRecord) -> bool:
        """Return whether replicas of the lane's model are reachable, but none of them can load its adapters."""
        replicas = self.reachable(specialist)
        has_server = any(self.can_serve(each, lane) for each in replicas)
        return not has_server and any(self._has_lost(each, lane) for each in replicas)

    def holders(self, specialist: str, lane: LaneRecord) -> list[str]:
        return [each.name for each in self.reachable(specialist) if holds_lane(each, lane)]

    def _has_lost(self, replica: ObservedReplica, lane: LaneRecord) -> bool:
        def cannot_load(ref: AdapterRef) -> bool:
            if ref.load_name in replica.adapters:
                return replica.adapters[ref.load_name] != ref.digest
            return self.unloadable.get((replica.name, ref.load_name)) == ref.digest

        return has_model(replica, lane) and any(each.path and cannot_load(each) for each in lane.adapters)


def has_model(replica: ObservedReplica, lane: LaneRecord) -> bool:
    return not lane.revision or not replica.revision or replica.revision == lane.revision


def matches_lane(replica: ObservedReplica, lane: LaneRecord) -> bool:
    """Return whether the replica has the lane's model, and holds no adapter of the lane with different content."""
    has_content = all(replica.adapters.get(each.load_name, each.digest) == each.digest for each in lane.adapters)
    return has_content and has_model(replica, lane)


def holds_lane(replica: ObservedReplica, lane: LaneRecord) -> bool:
    return matches_lane(replica, lane) and all(each.load_name in replica.adapters for each in lane.adapters)


def can_serve_lane(replica: ObservedReplica, lane: LaneRecord) -> bool:
    """Return whether the replica matches the lane, and holds each of its adapters or could load it from a path."""
    can_load = all(each.path or each.load_name in replica.adapters for each in lane.adapters)
    return can_load and matches_lane(replica, lane)


class CorrectnessWindows:
    def __init__(self, store: Store, span: float) -> None:
        self._store = store
        self.span = span
        self._windows = defaultdict[str, RollingWindow](lambda: RollingWindow(self.span))  # by lane id

    def add(self, lane_id: str, now: float, *, passed: bool) -> None:
        start = self._windows[lane_id].add(now, good=passed, bad=not passed)
        self._store.count(CountBucket(CORRECTNESS, lane_id, start, int(passed), int(not passed)))

    def put(self, buckets: Iterable[CountBucket]) -> None:
        for bucket in buckets:
            self._windows[bucket.key].put(bucket.start, bucket.good, bucket.bad)

    def counts(self, lane_id: str, now: float, since: float = 0.0) -> Counts:
        window = self._windows.get(lane_id)
        if window is None:
            return Counts()
        return window.counts_since(since, now) if since > now - self.span else window.counts(now)

    def reset(self, span: float, buckets: Iterable[CountBucket]) -> None:
        self.span = span
        self._windows.clear()
        self.put(buckets)

    def tidy(self, now: float) -> None:
        for name, window in list(self._windows.items()):
            window.expire(now)
            if not len(window):
                del self._windows[name]


class DemandWindows:
    """Counts requests by specialist and intent in the last `span` seconds. If a request is refused, the counts of its
    specialist are shared with other routers for the next `span` seconds, including requests accepted before."""

    def __init__(self, store: Store, span: float) -> None:
        self._store = store
        self.span = span
        self._windows = defaultdict[str, defaultdict[str, RollingWindow]](  # by specialist, then by intent
            lambda: defaultdict(lambda: RollingWindow(self.span))
        )
        self._refused_at: dict[str, float] = {}
        # By specialist: accepted requests by intent and bucket that the store does not know yet. They are added to the
        # store's sums until a refusal makes them shared.
        self._unshared = defaultdict[str, Counter[tuple[str, int]]](Counter)

    def add(self, specialist: str, intent: str, now: float, *, accepted: bool) -> None:
        if not accepted:
            self._refused_at[specialist] = now
        start = self._windows[specialist][intent].add(now, good=accepted, bad=not accepted)
        if now - self._refused_at.get(specialist, -inf) <= self.span:
            self._share(specialist, now)
            self._store.count(CountBucket(DEMAND, f"{specialist}|{intent}", start, int(accepted), int(not accepted)))
            return
        kept = self._unshared[specialist]
        if (intent, start) not in kept:
            for old in [each for each in kept if each[1] < now - self.span]:
                del kept[old]
        kept[intent, start] += 1

    def put(self, buckets: Iterable[CountBucket], now: float) -> None:
        """Set each bucket to the store's sum plus this router's unshared count. If a sum contains refusals, also store
        the specialist's unshared counts, so that every router sees the right proportion of refusals."""
        recent = [each for each in buckets if each.start >= now - self.span]
        for bucket in recent:
            specialist, _, intent = bucket.key.partition("|")
            own = self._unshared[specialist][intent, bucket.start]
            self._windows[specialist][intent].put(bucket.start, bucket.good + own, bucket.bad)
        for bucket in recent:
            if bucket.bad:
                specialist, _, _ = bucket.key.partition("|")
                self._refused_at[specialist] = max(bucket.start, self._refused_at.get(specialist, -inf))
                self._share(specialist, now)

    def counts(self, specialist: str, now: float) -> Counts:
        return sum((window.counts(now) for window in self._windows.get(specialist, {}).values()), Counts())

    def reset(self, span: float) -> None:
        self.span = span
        self._windows.clear()
        self._unshared.clear()

    def _share(self, specialist: str, now: float) -> None:
        for (intent, start), good in self._unshared.pop(specialist, {}).items():
            if start >= now - self.span:
                self._store.count(CountBucket(DEMAND, f"{specialist}|{intent}", start, good, 0))
