"""What every part of the control looks at: the configuration, the documents, the counts, the replicas."""

from collections.abc import Sequence

from admission.lane import AdapterRef, LaneRecord, lane_id
from admission.lanes import LaneBook
from octet.config.ensemble import Ensemble, SpecialistConfig
from octet.store import Store
from router.control.refusals import unknown_name
from router.control.seen import Replicas, Seen
from router.control.shelf import Shelf
from router.control.windows import Demand, Judged

BREAKER, KNOB, LANES, LADDER, REPLICA = "breaker", "knob", "lanes", "ladder", "replica"
"""Kinds of documents."""


class Known:
    def __init__(self, ensemble: Ensemble, store: Store, replicas: Replicas) -> None:
        self.ensemble = ensemble
        self.shelf = Shelf()
        self.judged = Judged(store, ensemble.correctness.window)
        self.demand = Demand(store, ensemble.escalation.sustain)
        self.replicas = replicas
        self._everybody: dict[str, list[Seen]] = {}
        self._seen: dict[str, list[Seen]] = {}
        self.lost: dict[tuple[str, str], str] = {}
        """By replica and what it calls an adapter: the digest of what it was to load and could not, as other content
        lies under the path, or nothing that can be loaded."""

    def look(self) -> None:
        """At the replicas, as they are now."""
        self._everybody, self._seen = {}, {}
        for each in self.replicas.seen():
            self._everybody.setdefault(each.specialist, []).append(each)
            if each.linked:
                self._seen.setdefault(each.specialist, []).append(each)

    def specialist(self, name: str) -> SpecialistConfig:
        """Raises Refusal."""
        if name not in self.ensemble.names:
            raise unknown_name("specialist", name, self.ensemble.names)
        return self.ensemble.specialist(name)

    def book(self, specialist: str) -> LaneBook | None:
        """None until it is known what the replicas run."""
        return self.shelf.read(LANES, specialist, LaneBook.from_body)

    def seen(self, specialist: str) -> Sequence[Seen]:
        """Its replicas that could be reached and had reported at the last look."""
        return self._seen.get(specialist, ())

    def everybody(self, specialist: str) -> Sequence[Seen]:
        """Reachable or not, at the last look."""
        return self._everybody.get(specialist, ())

    def num_replicas(self, specialist: str) -> int:
        return len(self.everybody(specialist))

    def found(self, seen: Seen) -> None:
        """It has what it could not load before, if it has."""
        for name, digest in seen.adapters.items():
            if self.lost.get((seen.name, name)) == digest:
                del self.lost[seen.name, name]

    def could_serve(self, seen: Seen, lane: LaneRecord) -> bool:
        """Whether it holds the lane, or can be made to."""
        return could_serve(seen, lane) and not self._has_lost(seen, lane)

    def is_lost(self, specialist: str, lane: LaneRecord) -> bool:
        """Replicas of its model are there, and what was loaded for the lane is nowhere any more."""
        seen = self.seen(specialist)
        if any(self.could_serve(each, lane) for each in seen):
            return False
        return any(self._has_lost(each, lane) for each in seen)

    def _has_lost(self, seen: Seen, lane: LaneRecord) -> bool:
        if lane.revision and seen.revision and seen.revision != lane.revision:
            return False
        return any(each.path and self._lacks_for_good(seen, each) for each in lane.adapters)

    def _lacks_for_good(self, seen: Seen, ref: AdapterRef) -> bool:
        if ref.load_name in seen.adapters:
            return seen.adapters[ref.load_name] != ref.digest
        return self.lost.get((seen.name, ref.load_name)) == ref.digest

    def holders(self, specialist: str, lane: LaneRecord) -> list[str]:
        """Names of the replicas that could answer on this lane now."""
        return [each.name for each in self.seen(specialist) if holds(each, lane)]


def is_what(seen: Seen, lane: LaneRecord) -> bool:
    """Whether a replica is what the lane is, as far as it has it: the model, and no other content under a name."""
    if lane.revision and seen.revision and seen.revision != lane.revision:
        return False
    return all(seen.adapters.get(each.load_name, each.digest) == each.digest for each in lane.adapters)


def holds(seen: Seen, lane: LaneRecord) -> bool:
    return is_what(seen, lane) and all(each.load_name in seen.adapters for each in lane.adapters)


def could_serve(seen: Seen, lane: LaneRecord) -> bool:
    """Whether it holds the lane, or can be made to: only what was loaded by path can be loaded again."""
    return is_what(seen, lane) and all(each.path or each.load_name in seen.adapters for each in lane.adapters)


def ids_of(book: LaneBook) -> list[str]:
    return [lane_id(book.specialist, lane) for lane in book.lanes]
