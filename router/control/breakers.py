"""Correctness breakers of the serving lanes: how they advance, are held and are released."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from admission import breakers as breaker_rules
from admission.breakers import (
    BreakerHold,
    BreakerRecord,
    CollapseSigns,
    CorrectnessRules,
    advance_breaker,
    hold_breaker,
    release_breaker,
)
from admission.floors import Floor, Standing, find_standing
from admission.lanes import LaneRecord, lane_id
from octet.limits import shorten
from octet.rpc.refusal import invalid_field
from router.control.audit import AuditWriter, ChangeAuthor, DocumentRevision, audit_row, conflict
from router.control.floors import FloorRegistry
from router.control.state import BREAKER, SharedState
from router.store.rows import DocumentBody

BREAKER_AUTHOR = "breaker"
_SETTLED = 0.1  # after this share of the breach time, a crossing of the floor is stored
_NO_HOLD = BreakerRecord()


@dataclass(frozen=True, slots=True)
class BreakerDocument:
    """The stored breaker of one specialist: a record for each lane, and the operator's hold, which all lanes share."""

    lanes: Mapping[str, BreakerRecord] = field(default_factory=dict)  # by lane id, without the hold
    held: BreakerRecord = _NO_HOLD  # only its hold is used

    def record(self, lane_id: str, since: float) -> BreakerRecord:
        return self.with_hold(self.lanes.get(lane_id) or BreakerRecord(since=since))

    def with_hold(self, record: BreakerRecord) -> BreakerRecord:
        held = self.held
        if held.hold is None:
            return release_breaker(record) if record.hold else record
        return hold_breaker(record, held.hold, held.hold_by, held.hold_why, held.hold_since)

    def release(self) -> "BreakerDocument":
        return replace(self, held=_NO_HOLD)

    def with_lane(self, lane_id: str, record: BreakerRecord, keep: Collection[str]) -> "BreakerDocument":
        lanes = {name: each for name, each in self.lanes.items() if name in keep}
        return replace(self, lanes={**lanes, lane_id: release_breaker(record)})

    def to_body(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> "BreakerDocument":
        lanes = {lane_id: BreakerRecord.from_body(each) for lane_id, each in body["lanes"].items()}
        return cls(lanes, BreakerRecord.from_body(body["held"]))


_EMPTY = BreakerDocument()


def merge_breaker_documents(stored: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return `stored` with those records of `own` that changed later than the stored ones; None if no record did."""
    try:
        theirs, ours = BreakerDocument.from_body(stored), BreakerDocument.from_body(own)
    except (ValueError, KeyError, TypeError, AttributeError):  # written by another version of Octet: it is kept
        return None
    newer = {name: each for name, each in ours.lanes.items() if _moved_at(each) > _moved_at(theirs.lanes.get(name))}
    return replace(theirs, lanes={**theirs.lanes, **newer}).to_body() if newer else None


def _moved_at(record: BreakerRecord | None) -> float:
    return record.transition_at if record is not None and record.transition_at is not None else 0.0


class _LocalRecord(NamedTuple):
    document: BreakerDocument
    lane_id: str
    record: BreakerRecord
    differs_since: float | None


class CorrectnessBreakers:
    def __init__(self, state: SharedState, audit: AuditWriter, floors: FloorRegistry) -> None:
        self._state = state
        self._audit = audit
        self.floors = floors
        self._local: dict[str, _LocalRecord] = {}

    def record(self, specialist: str) -> BreakerRecord:
        return self._record(specialist, self._document(specialist))

    def standing(self, specialist: str, now: float, lane: LaneRecord | None = None) -> Standing:
        """Return the counts and the floor that decide for a lane, by default the serving one."""
        if lane is None:
            return self._standing(specialist, self.record(specialist), now)
        return self._find_standing(specialist, lane_id(specialist, lane), _NO_HOLD, now)

    def rules(self, specialist: str, now: float) -> CorrectnessRules:
        return self._rules(specialist, self.standing(specialist, now), now)

    def signs(self, specialist: str, now: float) -> CollapseSigns:
        """Return what the serving lane's newest judged answers show."""
        lanes = self._state.lanes(specialist)
        if lanes is None:
            return CollapseSigns()
        recent = self._state.collapse.recent(lane_id(specialist, lanes.serving))
        return CollapseSigns(recent, self._state.find_collapse(lanes, lanes.serving, now))

    async def tick(self, now: float) -> None:
        for specialist in self._state.ensemble.names:
            if self._state.lanes(specialist) is not None:
                await self.floors.learn(specialist, self.record(specialist), now)
                await self._advance(specialist, now)

    async def hold(self, specialist: str, hold: str, author: ChangeAuthor, now: float) -> None:
        if hold not in ("open", "closed"):
            raise invalid_field("hold", "open or closed", shorten(hold))
        how: BreakerHold = "open" if hold == "open" else "closed"

        def revise(body: DocumentBody | None) -> DocumentRevision:
            document = _decode(body)
            row = audit_row(now, author, "hold_breaker", specialist, _describe_hold(document), f"held {how}")
            held = hold_breaker(_NO_HOLD, how, author.who, author.why, now)
            return DocumentRevision(replace(document, held=held).to_body(), row)

        await self._audit.order(BREAKER, specialist, revise)

    async def release(self, specialist: str, author: ChangeAuthor, now: float) -> None:
        def revise(body: DocumentBody | None) -> DocumentRevision:
            document = _decode(body)
            if document.held.hold is None:
                raise conflict(f"the breaker of {specialist} is not held", "specialist")
            released = document.release()
            after = self._record(specialist, released).state
            row = audit_row(now, author, "release_breaker", specialist, _describe_hold(document), after)
            return DocumentRevision(released.to_body(), row)

        await self._audit.order(BREAKER, specialist, revise)

    def _standing(self, specialist: str, record: BreakerRecord, now: float) -> Standing:
        """Return the standing of the serving lane, whose record it is."""
        return self._find_standing(specialist, self._state.serving_lane(specialist)[0], record, now)

    def _find_standing(self, specialist: str, lane: str, record: BreakerRecord, now: float) -> Standing:
        config, own = self._state.ensemble.correctness, self._state.ensemble.specialist(specialist).verify
        tally, floors = self._state.tally(specialist, lane, now), self.floors.in_force(specialist)
        return find_standing(floors, tally, config.min_samples, own, record.below_by, record.demoted_by)

    def _rules(self, specialist: str, standing: Standing, now: float) -> CorrectnessRules:
        learning = "" if standing.floor is not None else self.floors.progress(specialist, now)
        config = self._state.ensemble.correctness
        return breaker_rules.choose_correctness_rules(config, standing.floor, learning, standing.verifier)

    def _document(self, specialist: str) -> BreakerDocument:
        return self._state.documents.read(BREAKER, specialist, BreakerDocument.from_body) or _EMPTY

    async def _advance(self, specialist: str, now: float) -> None:
        document = self._document(specialist)
        lane, _ = self._state.serving_lane(specialist)
        before = self._record(specialist, document)
        standing = self._standing(specialist, before, now)
        rules, signs = self._rules(specialist, standing, now), self.signs(specialist, now)
        after, transition = advance_breaker(before, standing.counts, now, rules, signs)
        differs_since = None  # the time since which the timers differ from the stored ones
        if _timers(after) != _timers(document.record(*self._state.serving_lane(specialist))):
            local = self._local.get(specialist)
            is_known = local is not None and local.document == document and local.differs_since is not None
            differs_since = local.differs_since if local is not None and is_known else now
        self._local[specialist] = _LocalRecord(document, lane, after if transition is None else before, differs_since)
        is_settled = differs_since is not None and now - differs_since >= rules.breach * _SETTLED
        if transition is not None or is_settled:
            await self._audit.act(BREAKER, specialist, lambda body: self._revise(specialist, body, now))

    def _revise(self, specialist: str, body: DocumentBody | None, now: float) -> DocumentRevision | None:
        document = _decode(body)
        lane, since = self._state.serving_lane(specialist)
        before = self._record(specialist, document)
        standing = self._standing(specialist, before, now)
        counts, rules = standing.counts, self._rules(specialist, standing, now)
        after, transition = advance_breaker(before, counts, now, rules, self.signs(specialist, now))
        if _timers(after) == _timers(document.record(lane, since)) and transition is None:
            return None
        lanes = self._state.lanes(specialist)
        keep = [lane_id(specialist, each) for each in lanes.lanes] if lanes else ()
        changed = document.with_lane(lane, after, keep).to_body()
        if transition is not None:
            author = ChangeAuthor(BREAKER_AUTHOR, transition.why)
            row = audit_row(transition.at, author, transition.what, specialist, transition.before, transition.after)
        else:
            what = "above_floor" if after.below_since is None else "below_floor"
            floor = "is being learned" if rules.floor is None else f"is {Floor(rules.floor, rules.is_learned)}"
            why = f"{counts.good} of {counts.total} passed, the floor {floor}"
            row = audit_row(now, ChangeAuthor(BREAKER_AUTHOR, why), what, specialist, before.state, after.state)
        return DocumentRevision(changed, row)

    def _record(self, specialist: str, document: BreakerDocument) -> BreakerRecord:
        lane, since = self._state.serving_lane(specialist)
        local = self._local.get(specialist)
        if local is not None and local.lane_id == lane and local.document == document:
            return document.with_hold(local.record)
        return document.record(lane, since)


def _decode(body: DocumentBody | None) -> BreakerDocument:
    return _EMPTY if body is None else BreakerDocument.from_body(body)


def _timers(record: BreakerRecord) -> tuple[float | None, float | None]:
    return record.below_since, record.above_since


def _describe_hold(document: BreakerDocument) -> str:
    return f"held {document.held.hold}" if document.held.hold else "not held"
