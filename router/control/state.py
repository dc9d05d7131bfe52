"""Shared state of the control plane: configuration, documents, counts, replicas."""

import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256

from admission.budgets import Counts
from admission.collapse import CUT, DEGENERATE, Collapse
from admission.demand import DemandClass
from admission.floors import Tally, tally_of
from admission.knobs import UNSPECIFIED_INTENT
from admission.lanes import AdapterRef, LaneRecord, SpecialistLanes, lane_id
from octet.config.ensemble import Ensemble, IntentConfig, SpecialistConfig
from router.control.audit import DocumentCache, unknown_name
from router.control.collapse import CollapseMonitor
from router.control.demand import DemandOutcome, DemandWindows
from router.control.replicas import FleetReplicas, ObservedReplica
from router.control.windows import OutcomeWindows
from router.store.store import Store

BREAKER, KNOB, LANES, LADDER, REPLICA = "breaker", "knob", "lanes", "ladder", "replica"  # kinds of documents
RESTARTS = "restarts"  # another kind: how often a replica restarted, and why it last did
CORRECTNESS = "correctness"  # evaluated answers by lane and verifier: `good` counts passed answers, `bad` failed ones
FLOOR = "floor"  # another kind: the learned floors of a specialist
TICKET_KEYS = "ticket_keys"  # another kind: the keys that sign tickets
_MOST_KEY_PART = 100  # bytes of a verifier's name in the key of its counts
_DIGEST, _NAME_END = 16, 60  # hexadecimal digits and bytes that stand for a longer one


class SharedState:
    def __init__(
        self, ensemble: Ensemble, store: Store, replicas: FleetReplicas, wall: Callable[[], float] = time.time
    ) -> None:
        self._wall = wall
        self.is_durable = store.is_durable
        self.ensemble = ensemble
        self.documents = DocumentCache()
        self.correctness = OutcomeWindows(store, ensemble.correctness.window, CORRECTNESS)
        self.collapse = CollapseMonitor(store, ensemble.correctness.window)
        self.demand = DemandWindows(store, ensemble.escalation.sustain)
        self.replicas = replicas
        self._all: dict[str, list[ObservedReplica]] = {}
        self._reachable: dict[str, list[ObservedReplica]] = {}
        # by replica and load name: the digest of an adapter that the replica cannot load, or finds changed at its path
        self.unloadable: dict[tuple[str, str], str] = {}
        # by specialist: the answers in a row that its verifier could not judge, since this router's last verdict on one
        self.unavailable: dict[str, int] = {}

    def record_outcome(self, lane_id: str, outcome: str, verifier: str = "") -> None:
        """Count a verdict. Without the name of a `verifier`, it is the specialist's own."""
        specialist = lane_id.partition("|")[0]
        if lane_id and outcome == "unavailable":
            self.unavailable[specialist] = self.unavailable.get(specialist, 0) + 1
        elif lane_id and outcome in ("passed", "failed"):
            self.unavailable.pop(specialist, None)
            self.correctness.add(lane_id, verifier_key(verifier), self._wall(), passed=outcome == "passed")

    def tally(self, specialist: str, lane_id: str, now: float, since: float = 0.0) -> Tally:
        """Return the verdicts on a lane's answers in the window, by verifier."""
        ensemble = self.ensemble
        verifiers = (*(each.verify for each in ensemble.specialists), *(each.verify or "" for each in ensemble.tasks))
        names = {verifier_key(name): name for name in verifiers}
        counted = self.correctness.counts_by_kind(lane_id, now, since)
        by_verifier = {names.get(key, key): counts for key, counts in counted.items()}
        if (unnamed := by_verifier.pop("", None)) is not None:
            own = self.ensemble.specialist(specialist).verify
            by_verifier[own] = by_verifier.get(own, Counts()) + unnamed
        return tally_of(by_verifier)

    def record_demand(self, specialist: str, intent: str, kind: DemandClass, outcome: DemandOutcome) -> None:
        self.demand.add(specialist, intent or UNSPECIFIED_INTENT, kind, outcome, self._wall())

    def record_signals(
        self, lane: str, specialist: str, tenant: str, question: str, signals: Mapping[str, bool], what: str
    ) -> None:
        """Count a judged answer for each signal, by whether it is bad. `what` describes a degenerate answer."""
        lanes = self.lanes(specialist)
        is_trusted = lanes is not None and not lanes.serving.fresh and lane == lane_id(specialist, lanes.serving)
        acts_on = (DEGENERATE,) if is_trusted else (DEGENERATE, CUT)
        if lane:
            self.collapse.add(lane, tenant, question, signals, what, self._wall(), acts_on=acts_on)

    def find_collapse(
        self, lanes: SpecialistLanes, lane: LaneRecord, now: float, *, suspect: bool = False
    ) -> Collapse | None:
        """Return why the lane has collapsed, or with `suspect` is suspicious. A trusted lane does not collapse because
        its answers are cut: its weights are known, so the callers want longer answers. After a collapse, what was usual
        before it stays usual, for the lane and for those that are measured by it."""
        measure = lanes.measure_of(lane)
        names = [lane_id(lanes.specialist, each) if each is not None else "" for each in (lane, measure)]
        most = self._usual_before_collapse(lanes.specialist, names[1])
        found = self.collapse.find(names[0], names[1], now, most=most, suspect=suspect)
        is_trusted = measure is lane
        return None if found is not None and is_trusted and found.signal != DEGENERATE and not suspect else found

    def _usual_before_collapse(self, specialist: str, lane: str) -> float:
        """Return the share of degenerate answers that was usual before the lane collapsed; 1 if it has not."""
        body = self.documents.body(BREAKER, specialist) or {}
        record = body.get("lanes", {}).get(lane, {})
        return float(record.get("usual", 1.0)) if record.get("collapse") else 1.0

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

    def intents(self) -> dict[str, IntentConfig]:
        """Return the intents by name, with the one of requests that declare none."""
        return {intent.name: intent for intent in (IntentConfig(UNSPECIFIED_INTENT), *self.ensemble.intents)}

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


def verifier_key(name: str) -> str:
    """Return the verifier's name as a part of a stored key, which has a limit: of a long name, its end and a digest."""
    raw = name.encode("utf-8", "replace")
    if len(raw) <= _MOST_KEY_PART:
        return name
    return f"{sha256(raw).hexdigest()[:_DIGEST]}~{raw[-_NAME_END:].decode('utf-8', 'ignore')}"
