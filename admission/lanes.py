"""The lanes of one specialist: which one serves, which one waits to, and which one it can go back to.

Every change of one says by whom and why; a number is never given twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from admission.lane import HELD, AdapterRef, LaneRecord, Status, clashes, lane_of
from admission.pass_rate import pass_rate
from admission.trial import Rules, bar_of, breach, is_below
from admission.window import Counts

What = Literal["begin", "load", "promote", "roll_back", "trust"]
CONFIGURATION = "configuration"
POLICY = "lanes"
"""Who did what nobody asked for."""
_MOST_LANES = 20
"""Kept, those that replicas hold among them; the oldest of the others go first."""


class LaneError(ValueError):
    """A sentence for whoever asked for it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What the configuration said when a lane was last begun for it."""

    digests: tuple[str, ...]
    revision: str


@dataclass(frozen=True, slots=True)
class LaneMove:
    at: float
    what: What
    lane: int
    before: str
    after: str
    by: str
    why: str


@dataclass(frozen=True, slots=True)
class LaneBook:
    specialist: str
    lanes: tuple[LaneRecord, ...]
    """By number."""
    next_number: int
    origin: Origin

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
        """Raises KeyError."""
        for lane in self.lanes:
            if lane.number == number:
                return lane
        raise KeyError(number)

    def wanted(self) -> tuple[AdapterRef, ...]:
        """Every replica is to hold these, each once."""
        held = (lane for status in HELD for lane in self.lanes if lane.status == status)
        return tuple({adapter.load_name: adapter for lane in held for adapter in lane.adapters}.values())

    def load(
        self, adapters: Sequence[AdapterRef], by: str, why: str, now: float, *, revision: str | None = None
    ) -> tuple["LaneBook", LaneMove]:
        """As a candidate, on the model that serves or on another; a candidate that there was is retired. Raises
        LaneError for what is serving or a candidate already, by content, whatever it is called; and for a `load_name`
        of another content."""
        serving, former = self.serving, self.candidate
        lane = LaneRecord(
            self.next_number, tuple(adapters), revision or serving.revision, "candidate", now, by, why, fresh=True
        )
        self._check_is_new(lane)
        book = self if former is None else self._with(_turned(former, "retired", by, f"replaced: {why}", now))
        before = "" if former is None else f"{former} candidate"
        return book._with(lane), LaneMove(now, "load", lane.number, before, f"{lane} candidate", by, why)

    def promote(self, name: str | None, by: str, why: str, now: float) -> tuple["LaneBook", LaneMove]:
        """The candidate serves. Raises LaneError where there is none, or none of this name."""
        candidate = self.candidate
        if candidate is None:
            raise LaneError(f"{self.specialist} has no candidate to promote; load an adapter first")
        if name and name != candidate.name:
            raise LaneError(f"the candidate of {self.specialist} is {candidate.name!r}, not {name!r}")
        return self._promoted(candidate, by, why, now)

    def roll_back(self, by: str, why: str, now: float) -> tuple["LaneBook", LaneMove]:
        """The candidate goes; without one the lane that served before serves again, and the one that serves goes.
        Raises LaneError where there is neither."""
        if self.candidate is not None:
            return self._dropped(self.candidate, by, why, now)
        if self.previous is None:
            raise LaneError(f"{self.specialist} has neither a candidate nor a lane before {self.serving} to go back to")
        return self._returned(self.previous, by, why, now)

    def give_up(self, why: str, now: float) -> tuple["LaneBook", LaneMove] | None:
        """Nobody can serve the lane that is to any more: the one before serves again, by policy, and a candidate stays.
        None where there is none before it."""
        return None if self.previous is None else self._returned(self.previous, POLICY, why, now)

    def evidence_from(self) -> dict[int, float]:
        """From when on the judged answers of each lane that matters count: all of them, but of a fresh lane that serves
        those since it does. `judge` takes just these."""
        held = [lane for lane in self.lanes if lane.status in HELD]
        return {lane.number: lane.since if _is_on_trial(lane) else 0.0 for lane in held}

    def judge(
        self, counts: Mapping[int, Counts], now: float, rules: Rules, floor: float | None
    ) -> tuple["LaneBook", LaneMove | None]:
        """What the judged answers by lane make of it: one move at most. The lane that serves comes first."""
        serving, candidate, previous = self.serving, self.candidate, self.previous
        mine = counts.get(serving.number, Counts())
        if serving.fresh:
            bar = bar_of(previous, counts, rules, floor)
            if previous is not None and (why := breach(mine, bar, rules)):
                return self._returned(previous, POLICY, why, now)
            if mine.total >= rules.min_samples and not is_below(mine, bar):
                return self._trusted(serving, mine, now)
        if candidate is None:
            return self, None
        theirs = counts.get(candidate.number, Counts())
        if why := breach(theirs, bar_of(serving, counts, rules, floor), rules):
            return self._dropped(candidate, POLICY, why, now)
        if why := self._merit(theirs, mine, rules, floor):
            return self._promoted(candidate, POLICY, why, now)
        return self, None

    def outlook(self, number: int, counts: Mapping[int, Counts], rules: Rules, floor: float | None) -> str:
        """What would happen to a lane next, for people; `counts` as for `judge`. Raises KeyError."""
        lane = self.lane(number)
        own = counts.get(number, Counts())
        so_far = f"{min(own.total, rules.min_samples)} of {rules.min_samples} samples"
        if lane.status == "serving":
            return f"fresh: {so_far}, then trusted" if lane.fresh else "serves"
        if lane.status == "previous":
            return "waits, to be gone back to"
        if lane.status != "candidate":
            return f"{lane.status.replace('_', ' ')}: {lane.why}"
        if rules.promote == "manual":
            return f"shadows: {so_far}; promoted by hand"
        if own.total < rules.min_samples:
            return f"shadows: {so_far}"
        obstacle = self._obstacle(own, counts.get(self.serving.number, Counts()), rules, floor)
        return f"shadows: {obstacle or 'to be promoted'}"

    def to_body(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> "LaneBook":
        """Raises ValueError for what is none."""
        try:
            origin = Origin(tuple(body["origin"]["digests"]), body["origin"]["revision"])
            lanes = tuple(lane_of(lane) for lane in body["lanes"])
            book = cls(body["specialist"], lanes, body["next_number"], origin)
        except (KeyError, TypeError) as wrong:
            raise ValueError(f"a book of lanes is not whole: {wrong!r}") from None
        statuses = [lane.status for lane in lanes]
        if statuses.count("serving") != 1 or statuses.count("candidate") > 1 or statuses.count("previous") > 1:
            raise ValueError(f"of a specialist's lanes one serves, one may be a candidate, one the last: {statuses}")
        if [lane.number for lane in lanes] != sorted({lane.number for lane in lanes if lane.number < book.next_number}):
            raise ValueError(f"lanes are numbered in order and below {book.next_number}")
        return book

    def _check_is_new(self, coming: LaneRecord) -> None:
        for lane in self.lanes:
            is_same = (lane.revision, lane.digests) == (coming.revision, coming.digests)
            if is_same and lane.status in ("serving", "candidate"):
                raise LaneError(f"{lane} of {self.specialist} has this very content and is {lane.status} already")
            if lane.status in HELD and clashes(lane, coming.adapters):
                raise LaneError(f"{lane} of {self.specialist} has another content under the same name at the replicas")

    def _merit(self, theirs: Counts, mine: Counts, rules: Rules, floor: float | None) -> str:
        """Why the candidate is promoted by policy; empty where it is not."""
        if rules.promote != "auto" or self._obstacle(theirs, mine, rules, floor):
            return ""
        measured = "" if mine.total < rules.min_samples else f", of the lane that serves {pass_rate(mine)}"
        return f"{pass_rate(theirs)}{measured}" + ("" if floor is None else f"; the floor is {floor:.1%}")

    def _obstacle(self, theirs: Counts, mine: Counts, rules: Rules, floor: float | None) -> str:
        """Why a candidate is not promoted by policy; empty where it is."""
        if theirs.total < rules.min_samples or theirs.rate is None:
            return f"{theirs.total} of {rules.min_samples} samples"
        if self.serving.fresh:
            return f"waits until {self.serving} is trusted"
        if floor is not None and theirs.rate < floor:
            return f"{pass_rate(theirs)}, below the floor of {floor:.1%}"
        if mine.rate is None or mine.total < rules.min_samples:
            return "" if floor is not None else "nothing to measure it by: promoted by hand"
        if theirs.rate < mine.rate - rules.margin:
            return f"{pass_rate(theirs)}, {self.serving} is better: {pass_rate(mine)}"
        return ""

    def _promoted(self, candidate: LaneRecord, by: str, why: str, now: float) -> tuple["LaneBook", LaneMove]:
        book = self._with(_turned(candidate, "serving", by, why, now))
        book = book._with(_turned(self.serving, "previous", by, f"{candidate} promoted: {why}", now))
        if self.previous is not None:
            book = book._with(_turned(self.previous, "retired", by, f"{candidate} promoted: {why}", now))
        return book, LaneMove(now, "promote", candidate.number, str(self.serving), f"{candidate} serving", by, why)

    def _dropped(self, candidate: LaneRecord, by: str, why: str, now: float) -> tuple["LaneBook", LaneMove]:
        book = self._with(_turned(candidate, "rolled_back", by, why, now))
        return book, LaneMove(now, "roll_back", candidate.number, f"{candidate} candidate", str(self.serving), by, why)

    def _returned(self, previous: LaneRecord, by: str, why: str, now: float) -> tuple["LaneBook", LaneMove]:
        serving = self.serving
        book = self._with(_turned(previous, "serving", by, f"{serving} rolled back: {why}", now))
        book = book._with(_turned(serving, "rolled_back", by, why, now))
        return book, LaneMove(now, "roll_back", serving.number, f"{serving} serving", f"{previous} serving", by, why)

    def _trusted(self, serving: LaneRecord, counts: Counts, now: float) -> tuple["LaneBook", LaneMove]:
        book = self._with(replace(serving, fresh=False))
        return book, LaneMove(
            now, "trust", serving.number, f"{serving} fresh", f"{serving} trusted", POLICY, pass_rate(counts)
        )

    def _with(self, lane: LaneRecord) -> "LaneBook":
        """The lane in its place, or at the end."""
        by_number = {each.number: each for each in self.lanes} | {lane.number: lane}
        gone = [number for number, each in by_number.items() if each.status not in HELD]
        for number in gone[: max(0, len(by_number) - _MOST_LANES)]:
            del by_number[number]
        return replace(self, lanes=tuple(by_number.values()), next_number=max(self.next_number, lane.number + 1))


def begin(
    book: LaneBook | None, specialist: str, adapters: Sequence[AdapterRef], revision: str, now: float
) -> tuple[LaneBook, LaneMove | None]:
    """What is configured, beside what is known. The very first lane is trusted: it is what the operator chose. Where
    model or configured adapters are others than those known, a fresh lane serves, as nothing else is there, or nothing
    else was asked for; what ran on another model cannot be gone back to. Where they are the same, all stays, whatever
    was promoted since."""
    origin = Origin(tuple(adapter.digest for adapter in adapters), revision)
    if book is None:
        lane = LaneRecord(1, tuple(adapters), revision, "serving", now, CONFIGURATION, "the first", fresh=False)
        move = LaneMove(now, "begin", 1, "", f"{lane} serving", lane.by, lane.why)
        return LaneBook(specialist, (lane,), 2, origin), move
    if book.origin == origin:
        return book, None
    why = "another model" if book.origin.revision != revision else "other adapters are configured"
    lane = LaneRecord(book.next_number, tuple(adapters), revision, "serving", now, CONFIGURATION, why, fresh=True)
    move = LaneMove(now, "begin", lane.number, f"{book.serving} serving", f"{lane} serving", lane.by, why)
    return replace(_cleared(book, lane), origin=origin)._with(lane), move


def _cleared(book: LaneBook, coming: LaneRecord) -> LaneBook:
    """For another lane to serve. Those that it leaves nothing of are retired."""
    for lane in book.lanes:
        gone = lane.revision != coming.revision or clashes(lane, coming.adapters)
        if lane.status == "previous" or (lane.status in HELD and gone):
            book = book._with(_turned(lane, "retired", coming.by, coming.why, coming.since))
        elif lane.status == "serving":
            book = book._with(_turned(lane, "previous", coming.by, coming.why, coming.since))
    return book


def _turned(lane: LaneRecord, status: Status, by: str, why: str, now: float) -> LaneRecord:
    return replace(lane, status=status, by=by, why=why, since=now)


def _is_on_trial(lane: LaneRecord) -> bool:
    return lane.status == "serving" and lane.fresh
