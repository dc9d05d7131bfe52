"""The lanes of a specialist: candidate, serving, previous; promotion and roll-back."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, get_args

from admission.budgets import Counts, format_pass_rate
from admission.floors import Floors, chance_of_fewer, expected_rate, floor_at
from admission.weights import Refresh
from octet.config.ensemble import LanesConfig
from octet.identity import digest_parts

LaneState = Literal["serving", "candidate", "previous", "retired", "rolled_back"]
HELD_STATES: tuple[LaneState, ...] = ("serving", "candidate", "previous")  # replicas keep the adapters of these lanes
_SHORT_DIGEST = 12


@dataclass(frozen=True, slots=True)
class AdapterRef:
    name: str  # the adapter's name for callers and operators
    load_name: str  # the adapter's name on replicas, different for each content
    digest: str  # sha256 of the adapter's content, hex
    path: str


@dataclass(frozen=True, slots=True)
class LaneRecord:
    number: int
    adapters: tuple[AdapterRef, ...]
    revision: str  # sha256 of the model's content, hex
    status: LaneState
    since: float  # Unix seconds of the last change of status, which `by` and `why` describe
    by: str
    why: str
    fresh: bool  # whether it has too few evaluated answers to be trusted

    @property
    def name(self) -> str:
        """The names of its adapters, joined by `+`; empty for the base model."""
        return "+".join(adapter.name for adapter in self.adapters)

    @property
    def digests(self) -> tuple[str, ...]:
        return tuple(adapter.digest for adapter in self.adapters)

    def __str__(self) -> str:
        return f"lane {self.number} ({self.name or 'bare model'})"


@lru_cache(256)
def lane_id(specialist: str, lane: LaneRecord) -> str:
    """Return an id that is unique and the same on every router that shares the store."""
    digest = digest_parts(part.encode() for part in (lane.revision, *lane.digests)).hex()
    return f"{specialist}|{lane.number}|{digest[:_SHORT_DIGEST]}"


def has_name_clash(lane: LaneRecord, adapters: Sequence[AdapterRef]) -> bool:
    """Whether the lane uses the load name of one of these adapters for different content."""
    known = {adapter.load_name: adapter.digest for adapter in lane.adapters}
    return any(known.get(adapter.load_name, adapter.digest) != adapter.digest for adapter in adapters)


def restore_lane(body: Mapping[str, Any]) -> LaneRecord:
    """Restore a stored lane. Raises ValueError, KeyError or TypeError for an invalid body."""
    adapters = tuple(AdapterRef(**adapter) for adapter in body["adapters"])
    lane = LaneRecord(**{**body, "adapters": adapters})
    if lane.status not in get_args(LaneState):
        raise ValueError(f"invalid lane status {lane.status!r}")
    return lane


_FEWEST = 10  # evaluated answers before a lane may be rolled back by policy
_DOUBT = 0.001  # a result that is less likely than this is not due to chance


@dataclass(frozen=True, slots=True)
class QualityBar:
    """The pass rate below which a fresh lane is rolled back, and a description of it."""

    rate: float
    text: str


def quality_bar(
    measure: LaneRecord | None, counts: Mapping[int, Counts], own: Counts, rules: LanesConfig, floors: Floors
) -> QualityBar | None:
    """Return the higher of the floor and the pass rate of `measure` minus `rules.worse`, both for answers judged by the
    same verifiers as the lane's `own`; None if neither is known."""
    floor = floor_at(floors, own)
    bars = [] if floor is None else [QualityBar(floor, f"the floor of {floor:.1%}")]
    reference = Counts() if measure is None else counts.get(measure.number, Counts())
    expected = expected_rate(reference, own)
    if expected is not None and reference.total >= rules.min_samples:
        rate = expected - rules.worse
        bars.append(QualityBar(rate, f"{rate:.1%}, which is {measure}'s {expected:.1%} less {rules.worse:.1%}"))
    return max(bars, default=None, key=lambda bar: bar.rate)


def is_below_bar(counts: Counts, bar: QualityBar | None) -> bool:
    return bar is not None and counts.rate is not None and counts.rate < bar.rate


def find_breach(counts: Counts, bar: QualityBar | None, rules: LanesConfig) -> str:
    """Return why a lane is rolled back; empty if it is not. With at least `rules.min_samples` samples, a pass rate
    below the bar is enough. With fewer, but at least `_FEWEST`, the rate must be below the bar beyond doubt."""
    if not rules.roll_back or bar is None or counts.total < _FEWEST:
        return ""
    if counts.total >= rules.min_samples:
        return f"{format_pass_rate(counts)}, below {bar.text}" if is_below_bar(counts, bar) else ""
    is_certain = chance_of_fewer(counts, bar.rate) < _DOUBT
    return f"{format_pass_rate(counts)}, beyond doubt below {bar.text}" if is_certain else ""


_NONE_COLLAPSED: Mapping[int, str] = MappingProxyType({})
LaneMoveKind = Literal["begin", "load", "promote", "roll_back", "trust", "refresh", "refresh_failed", "return"]
BY_CONFIGURATION = "configuration"
BY_POLICY = "lanes"  # the actor of automatic moves
_MAX_LANES = 20  # lanes that are kept; the oldest that no replica holds are dropped first


class LaneError(ValueError):
    """An operation that the lanes do not allow. The message is meant for the operator."""


@dataclass(frozen=True, slots=True)
class LaneOrigin:
    """The configured adapters and model from which a lane was last created."""

    digests: tuple[str, ...]
    revision: str


@dataclass(frozen=True, slots=True)
class LaneMove:
    at: float
    what: LaneMoveKind
    lane: int
    before: str
    after: str
    by: str
    why: str


@dataclass(frozen=True, slots=True)
class SpecialistLanes:
    specialist: str
    lanes: tuple[LaneRecord, ...]  # by number
    next_number: int
    origin: LaneOrigin
    refresh: Refresh = field(default_factory=Refresh)

    @property
    def serving(self) -> LaneRecord:
        return next(lane for lane in self.lanes if lane.status == "serving")

    @property
    def candidate(self) -> LaneRecord | None:
        return next((lane for lane in self.lanes if lane.status == "candidate"), None)

    @property
    def previous(self) -> LaneRecord | None:
        return next((lane for lane in self.lanes if lane.status == "previous"), None)

    def lane(self, number: int) -> LaneRecord:
        """Raises KeyError for an unknown number."""
        return {lane.number: lane for lane in self.lanes}[number]

    def wanted(self) -> tuple[AdapterRef, ...]:
        """The adapters that every replica should hold, without duplicates."""
        held = (lane for status in HELD_STATES for lane in self.lanes if lane.status == status)
        return tuple({adapter.load_name: adapter for lane in held for adapter in lane.adapters}.values())

    def load(
        self, adapters: Sequence[AdapterRef], by: str, why: str, now: float, *, revision: str | None = None
    ) -> tuple["SpecialistLanes", LaneMove]:
        """Return the lanes with these adapters as the new candidate, on the serving model or on `revision`. A former
        candidate is retired. Raises LaneError if this content already serves or is the candidate, or if a lane on the
        replicas uses the same `load_name` for different content."""
        serving, former = self.serving, self.candidate
        lane = LaneRecord(
            self.next_number, tuple(adapters), revision or serving.revision, "candidate", now, by, why, fresh=True
        )
        self._check_is_new(lane)
        book = self if former is None else self._with(_with_status(former, "retired", by, f"replaced: {why}", now))
        before = "" if former is None else f"{former} candidate"
        return book._with(lane), LaneMove(now, "load", lane.number, before, f"{lane} candidate", by, why)

    def promote(self, name: str | None, by: str, why: str, now: float) -> tuple["SpecialistLanes", LaneMove]:
        """Make the candidate the serving lane. Raises LaneError without a candidate, or if it is not named `name`."""
        candidate = self.candidate
        if candidate is None:
            raise LaneError(f"{self.specialist} has no candidate to promote; load an adapter first")
        if name and name != candidate.name:
            raise LaneError(f"the candidate of {self.specialist} is {candidate.name!r}, not {name!r}")
        return self._promote(candidate, by, why, now)

    def roll_back(self, by: str, why: str, now: float) -> tuple["SpecialistLanes", LaneMove]:
        """Drop the candidate. Without a candidate, go back to the previous lane. Raises LaneError without either."""
        if self.candidate is not None:
            return self._drop(self.candidate, by, why, now)
        if self.previous is None:
            raise LaneError(f"{self.specialist} has neither a candidate to drop nor a previous lane to return to")
        return self._return_to(self.previous, by, why, now)

    def return_to_previous(self, by: str, why: str, now: float) -> tuple["SpecialistLanes", LaneMove]:
        """Go back to the previous lane; the candidate is kept. Raises LaneError without a previous lane."""
        if self.previous is None:
            raise LaneError(f"{self.specialist} has no previous lane to return to")
        return self._return_to(self.previous, by, why, now)

    def give_up(self, why: str, now: float) -> tuple["SpecialistLanes", LaneMove] | None:
        """Go back to the previous lane, because no replica can serve the current one. The candidate is kept. Return
        None if there is no previous lane."""
        return None if self.previous is None else self._return_to(self.previous, BY_POLICY, why, now)

    def evidence_from(self) -> dict[int, float]:
        """Return, by lane number, the time from which evaluated answers count for `judge`: the beginning of service for
        a fresh serving lane, 0 for the others."""
        held = [lane for lane in self.lanes if lane.status in HELD_STATES]
        return {lane.number: lane.since if lane.fresh and lane.status == "serving" else 0.0 for lane in held}

    def measure_of(self, lane: LaneRecord) -> LaneRecord | None:
        """Return the lane whose past shows what is usual for this one: itself if it is trusted, else the lane before
        it, which had the same callers. None for the first lane."""
        if lane.status == "candidate":
            return self.serving
        return self.previous if lane.fresh else lane

    def judge(
        self,
        counts: Mapping[int, Counts],
        now: float,
        rules: LanesConfig,
        floors: Floors,
        collapsed: Mapping[int, str] = _NONE_COLLAPSED,
    ) -> tuple["SpecialistLanes", LaneMove | None]:
        """Judge the serving lane, then the candidate, by their counts. `collapsed` tells by number why a lane
        collapsed: it is rolled back at once, and neither trusted nor promoted. Return the lanes and any move."""
        serving, candidate, previous = self.serving, self.candidate, self.previous
        mine = counts.get(serving.number, Counts())
        if serving.fresh:
            bar = quality_bar(previous, counts, mine, rules, floors)
            fallen = collapsed.get(serving.number, "")
            why = (fallen if rules.roll_back else "") or find_breach(mine, bar, rules)
            if previous is not None and why:
                return self._return_to(previous, BY_POLICY, why, now)
            if mine.total >= rules.min_samples and not is_below_bar(mine, bar) and not fallen:
                return self._trust(serving, mine, now)
        if candidate is None:
            return self, None
        theirs = counts.get(candidate.number, Counts())
        fallen = collapsed.get(candidate.number, "")
        bar = quality_bar(serving, counts, theirs, rules, floors)
        if why := (fallen if rules.roll_back else "") or find_breach(theirs, bar, rules):
            return self._drop(candidate, BY_POLICY, why, now)
        if fallen:
            return self, None
        if why := self._merit(theirs, mine, rules, floors):
            return self._promote(candidate, BY_POLICY, why, now)
        return self, None

    def outlook(self, number: int, counts: Mapping[int, Counts], rules: LanesConfig, floors: Floors) -> str:
        """Describe the next possible move of a lane. Raises KeyError for an unknown lane."""
        lane = self.lane(number)
        own = counts.get(number, Counts())
        so_far = f"{min(own.total, rules.min_samples)} of {rules.min_samples} samples"
        if lane.status == "serving":
            return f"fresh: {so_far}, then trusted" if lane.fresh else "serving"
        if lane.status == "previous":
            return "kept for rollback"
        if lane.status != "candidate":
            return f"{lane.status.replace('_', ' ')}: {lane.why}"
        if rules.promote == "manual":
            return f"shadows: {so_far}; promote it by hand"
        if own.total < rules.min_samples:
            return f"shadows: {so_far}"
        obstacle = self._obstacle(own, counts.get(self.serving.number, Counts()), rules, floors)
        return f"shadows: {obstacle or 'about to be promoted'}"

    def to_body(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> "SpecialistLanes":
        """Raises ValueError for an invalid body."""
        try:
            origin = LaneOrigin(tuple(body["origin"]["digests"]), body["origin"]["revision"])
            lanes = tuple(restore_lane(lane) for lane in body["lanes"])
            refresh = Refresh.from_body(body["refresh"]) if "refresh" in body else Refresh()
            book = cls(body["specialist"], lanes, body["next_number"], origin, refresh)
        except (KeyError, TypeError) as wrong:
            raise ValueError(f"the stored lanes are incomplete: {wrong!r}") from None
        statuses = [lane.status for lane in lanes]
        if statuses.count("serving") != 1 or statuses.count("candidate") > 1 or statuses.count("previous") > 1:
            raise ValueError(f"expected 1 serving, at most 1 candidate and at most 1 previous lane, got {statuses}")
        if [lane.number for lane in lanes] != sorted({lane.number for lane in lanes if lane.number < book.next_number}):
            raise ValueError(f"lane numbers must be in ascending order and below {book.next_number}")
        return book

    def _check_is_new(self, coming: LaneRecord) -> None:
        for lane in self.lanes:
            is_same = (lane.revision, lane.digests) == (coming.revision, coming.digests)
            if is_same and lane.status in ("serving", "candidate"):
                raise LaneError(f"{lane} of {self.specialist} already has this content; its status is {lane.status}")
            if lane.status in HELD_STATES and has_name_clash(lane, coming.adapters):
                raise LaneError(f"{lane} of {self.specialist} has a different adapter of the same name on the replicas")

    def _merit(self, theirs: Counts, mine: Counts, rules: LanesConfig, floors: Floors) -> str:
        """Return why the candidate is promoted by policy; empty if it is not."""
        if rules.promote != "auto" or self._obstacle(theirs, mine, rules, floors):
            return ""
        floor = floor_at(floors, theirs)
        measured = "" if mine.total < rules.min_samples else f", the serving lane {format_pass_rate(mine)}"
        return f"{format_pass_rate(theirs)}{measured}" + ("" if floor is None else f"; the floor is {floor:.1%}")

    def _obstacle(self, theirs: Counts, mine: Counts, rules: LanesConfig, floors: Floors) -> str:
        """Return what keeps the policy from promoting the candidate; empty if nothing does."""
        if theirs.total < rules.min_samples or theirs.rate is None:
            return f"{theirs.total} of {rules.min_samples} samples"
        if self.serving.fresh:
            return f"waiting until {self.serving} is trusted"
        floor = floor_at(floors, theirs)
        if floor is not None and theirs.rate < floor:
            return f"{format_pass_rate(theirs)}, below the floor of {floor:.1%}"
        if mine.rate is None or mine.total < rules.min_samples:
            return "" if floor is not None else "no reference to compare with: promote it by hand"
        expected = expected_rate(mine, theirs)
        if expected is not None and theirs.rate < expected - rules.margin:
            return f"{format_pass_rate(theirs)}, {self.serving} is better: {format_pass_rate(mine)}"
        return ""

    def _promote(self, candidate: LaneRecord, by: str, why: str, now: float) -> tuple["SpecialistLanes", LaneMove]:
        book = self._with(_with_status(candidate, "serving", by, why, now))
        book = book._with(_with_status(self.serving, "previous", by, f"{candidate} promoted: {why}", now))
        if self.previous is not None:
            book = book._with(_with_status(self.previous, "retired", by, f"{candidate} promoted: {why}", now))
        return book, LaneMove(now, "promote", candidate.number, str(self.serving), f"{candidate} serving", by, why)

    def _drop(self, candidate: LaneRecord, by: str, why: str, now: float) -> tuple["SpecialistLanes", LaneMove]:
        book = self._with(_with_status(candidate, "rolled_back", by, why, now))
        return book, LaneMove(now, "roll_back", candidate.number, f"{candidate} candidate", str(self.serving), by, why)

    def _return_to(self, previous: LaneRecord, by: str, why: str, now: float) -> tuple["SpecialistLanes", LaneMove]:
        serving = self.serving
        book = self._with(_with_status(previous, "serving", by, f"{serving} rolled back: {why}", now))
        book = book._with(_with_status(serving, "rolled_back", by, why, now))
        return book, LaneMove(now, "roll_back", serving.number, f"{serving} serving", f"{previous} serving", by, why)

    def _trust(self, serving: LaneRecord, counts: Counts, now: float) -> tuple["SpecialistLanes", LaneMove]:
        book = self._with(replace(serving, fresh=False))
        return book, LaneMove(
            now, "trust", serving.number, f"{serving} fresh", f"{serving} trusted", BY_POLICY, format_pass_rate(counts)
        )

    def _with(self, lane: LaneRecord) -> "SpecialistLanes":
        """Replace the lane, or add it at the end. If there are too many, drop the oldest that no replica holds."""
        by_number = {each.number: each for each in self.lanes} | {lane.number: lane}
        gone = [number for number, each in by_number.items() if each.status not in HELD_STATES]
        for number in gone[: max(0, len(by_number) - _MAX_LANES)]:
            del by_number[number]
        return replace(self, lanes=tuple(by_number.values()), next_number=max(self.next_number, lane.number + 1))


LaneUpdate = tuple[SpecialistLanes, LaneMove]


def configure_lanes(
    book: SpecialistLanes | None, specialist: str, adapters: Sequence[AdapterRef], revision: str, now: float
) -> tuple[SpecialistLanes, LaneMove | None]:
    """Return the lanes for this configuration, and the move if a lane began. The very first lane is trusted, because
    the operator chose it. If the model or the configured adapters have changed, a fresh lane begins to serve, and lanes
    that cannot coexist with it are retired. Otherwise all lanes stay, including promoted ones."""
    origin = LaneOrigin(tuple(adapter.digest for adapter in adapters), revision)
    if book is None:
        lane = LaneRecord(1, tuple(adapters), revision, "serving", now, BY_CONFIGURATION, "the first lane", fresh=False)
        move = LaneMove(now, "begin", 1, "", f"{lane} serving", lane.by, lane.why)
        return SpecialistLanes(specialist, (lane,), 2, origin), move
    if book.origin == origin:
        return book, None
    why = "another model" if book.origin.revision != revision else "other adapters are configured"
    lane = LaneRecord(book.next_number, tuple(adapters), revision, "serving", now, BY_CONFIGURATION, why, fresh=True)
    move = LaneMove(now, "begin", lane.number, f"{book.serving} serving", f"{lane} serving", lane.by, why)
    return replace(_clear_for(book, lane), origin=origin)._with(lane), move


def _clear_for(book: SpecialistLanes, coming: LaneRecord) -> SpecialistLanes:
    """Retire the previous lane and all lanes that cannot coexist with `coming`. A serving lane that can coexist with
    `coming` becomes the previous lane."""
    for lane in book.lanes:
        gone = lane.revision != coming.revision or has_name_clash(lane, coming.adapters)
        if lane.status == "previous" or (lane.status in HELD_STATES and gone):
            book = book._with(_with_status(lane, "retired", coming.by, coming.why, coming.since))
        elif lane.status == "serving":
            book = book._with(_with_status(lane, "previous", coming.by, coming.why, coming.since))
    return book


def _with_status(lane: LaneRecord, status: LaneState, by: str, why: str, now: float) -> LaneRecord:
    return replace(lane, status=status, by=by, why=why, since=now)
