"""Escalation of an intent that overloads a specialist.

First the shadow threshold of this intent rises, so that more of its low-confidence requests go to their second choice;
then its priority floor rises, so that its low priorities are withheld. Both rise only as far as recent requests need,
and fall in reverse order as soon as the withheld requests fit again."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any, Literal, NamedTuple

from admission.budgets import bucket_seconds, restore_record
from admission.demand import NO_DEMAND, NO_SECOND_CHOICE, DemandClass, DemandCounts, IntentDemand, fair_shares
from octet.config.ensemble import EscalationConfig

EscalationMoveKind = Literal["escalate", "relax"]
_MAX_REGRETS = 6  # the waits for a step back double at most this many times
_LEAST_STEP = 0.01  # the confidence of requests is counted in percent
_ROOM = 0.9  # withheld requests fit if they need at most this share of the capacity


class KnobSteps(NamedTuple):
    """How far escalation has raised both knobs."""

    threshold: int = 0
    floor: int = 0


@dataclass(frozen=True, slots=True)
class KnobBase:
    """The values from which escalation raises the knobs of an intent at a specialist."""

    threshold: float  # as configured
    floor: int
    set_threshold: float | None = None  # set by an operator: it stays in force
    set_floor: int | None = None

    def raised(self, steps: KnobSteps, rules: EscalationConfig) -> tuple[float, int]:
        """Return the configured values, raised by `steps` up to the maxima in `rules`."""
        threshold, floor = self.threshold, self.floor
        if steps.threshold and (most := self._threshold_steps(rules)):
            raised = round(threshold + steps.threshold * max(rules.threshold_step, _LEAST_STEP), 9)
            threshold = rules.max_threshold if steps.threshold >= most else max(threshold, raised)
        if steps.floor and floor < rules.max_floor:
            floor = min(floor + steps.floor * rules.floor_step, rules.max_floor)
        return threshold, floor

    def in_force(self, steps: KnobSteps, rules: EscalationConfig) -> tuple[float, int]:
        threshold, floor = self.raised(steps, rules)
        return (
            threshold if self.set_threshold is None else self.set_threshold,
            floor if self.set_floor is None else self.set_floor,
        )

    def most_steps(self, rules: EscalationConfig) -> KnobSteps:
        if not rules.enabled:
            return KnobSteps()
        return KnobSteps(self._threshold_steps(rules), max(0, ceil((rules.max_floor - self.floor) / rules.floor_step)))

    def withholds(self, steps: KnobSteps, request: DemandClass, rules: EscalationConfig) -> bool:
        """Return whether a request is kept away from the specialist after these steps."""
        threshold, floor = self.in_force(steps, rules)
        if request.priority < floor:
            return True
        is_movable = steps.threshold > 0 and request.confidence != NO_SECOND_CHOICE
        return is_movable and request.confidence < round(threshold * 100, 9)

    def _threshold_steps(self, rules: EscalationConfig) -> int:
        if rules.threshold_step <= 0 or self.threshold >= rules.max_threshold:
            return 0
        step = max(rules.threshold_step, _LEAST_STEP)
        return max(1, ceil(round((rules.max_threshold - self.threshold) / step, 9)))


@dataclass(frozen=True, slots=True)
class EscalationLadder:
    """The stored state of the escalation of one intent at one specialist. Times are Unix seconds."""

    threshold_steps: int = 0
    floor_steps: int = 0
    since: float = 0.0
    hot_since: float | None = None  # since when every check found the intent overloading; None if the last did not
    calm_since: float | None = None  # since when every check found calm
    fits_since: float | None = None  # since when every check found a step back that fits
    fell: bool = False  # whether the last move was a step back
    regrets: int = 0  # steps back in a row that soon had to be undone: each doubles the waits for the next one
    capacity: float = 0.0  # requests that the specialist can accept in a second, as seen at the last step up or since

    @property
    def steps(self) -> KnobSteps:
        return KnobSteps(self.threshold_steps, self.floor_steps)

    @property
    def level(self) -> int:
        return self.threshold_steps + self.floor_steps

    def to_body(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> "EscalationLadder":
        """Raises ValueError for an invalid body."""
        ladder = restore_record(cls, body, "an escalation ladder")
        for count in (ladder.threshold_steps, ladder.floor_steps, ladder.regrets):
            if not isinstance(count, int) or count < 0:
                raise ValueError(f"a ladder's steps and regrets must be integers of at least 0, got {count!r}")
        return ladder


@dataclass(frozen=True, slots=True)
class EscalationMove:
    before: KnobSteps
    after: KnobSteps
    what: EscalationMoveKind
    why: str
    returning: int = 0  # requests within the window that come back to the specialist


@dataclass(frozen=True, slots=True)
class EscalationView:
    """What the ladder of one intent at one specialist depends on. The counts are of the last `rules.sustain` seconds.

    An intent overloads its specialist if the specialist refuses too many requests and the intent asks for more than its
    share: its usual demand, and an equal part of what the usual demands of all intents leave of the capacity."""

    intent: str
    demand: Mapping[str, IntentDemand]  # by intent
    base: KnobBase
    rules: EscalationConfig
    moved_at: float = 0.0  # the last move of any intent at the specialist
    reserved: int = 0  # requests of other intents that come back now

    @property
    def own(self) -> IntentDemand:
        return self.demand.get(self.intent, NO_DEMAND)

    @property
    def total(self) -> DemandCounts:
        return sum((each.total for each in self.demand.values()), DemandCounts())

    @property
    def excess(self) -> float:
        """How many requests the intent asks beyond its share."""
        return self.own.total.asked - self.share(self.total.accepted)

    @property
    def is_hot(self) -> bool:
        """Whether the intent overloads the specialist."""
        total, limit = self.total, self.rules.refused
        is_refusing = total.asked >= self.rules.min_requests and total.refused > limit * total.asked
        return is_refusing and self.excess > limit * self.own.total.asked

    @property
    def is_calm(self) -> bool:
        total = self.total
        return total.refused == 0 or total.refused < self.rules.calm * total.asked

    def share(self, capacity: float, returning: int = 0) -> float:
        """Return the intent's share of the capacity if `returning` more of its requests come."""
        wanted = {name: float(each.total.asked) for name, each in self.demand.items()}
        wanted[self.intent] = float(self.own.total.asked + returning)
        return fair_shares(wanted, {name: each.usual for name, each in self.demand.items()}, capacity)[self.intent]

    def returning(self, steps: KnobSteps) -> int:
        """Return how many of the withheld requests would come back after a step back to `steps`."""
        classes = self.own.classes.items()
        return sum(each.withheld for kind, each in classes if not self.base.withholds(steps, kind, self.rules))

    def fits(self, steps: KnobSteps, capacity: float) -> bool:
        """Whether the requests that come back fit into the capacity, or into the intent's share of it."""
        returning = self.returning(steps)
        room = max(0.0, _ROOM * capacity * self.rules.sustain - self.reserved)
        return not returning or self.own.total.asked + returning <= self.share(room, returning) + 1e-9

    def step_up(self, steps: KnobSteps) -> KnobSteps | None:
        """Return the smallest steps that relieve the specialist of the intent's excess, or of as much as possible; None
        if no step would move or withhold a recent request. A floor withholds no more requests than the excess, and
        never the intent's highest priority."""
        most, asked = self.base.most_steps(self.rules), self._asked()
        best, relief = None, 0
        for number in range(steps.threshold + 1, most.threshold + 1):
            if relief >= self.excess:
                break
            after = KnobSteps(number, steps.floor)
            moved = sum(num for kind, num in asked.items() if self._would_move(kind, steps, after))
            if moved > relief:
                best, relief = after, moved
        if best is not None:
            return best
        for after, _, withheld in self._floors_above(steps):
            if withheld > self.excess + 1e-9:
                break
            if withheld > relief:
                best, relief = after, withheld
        return best

    def why_no_step(self, steps: KnobSteps) -> str:
        """Describe why no step up would help; the intent must be hot, and `step_up` must return None."""
        total = self.total
        refused = f"{total.refused} of {total.asked} requests refused within {self.rules.sustain:g} s"
        lowest = next(((floor, withheld) for _, floor, withheld in self._floors_above(steps)), None)
        why = "no floor would withhold a recent request and spare the highest priority"
        if lowest is not None:
            floor, withheld = lowest
            why = f"a floor of {floor} would withhold {withheld} requests, of which only {self.excess:.0f} are too many"
        return f"{refused}, and no step of escalation helps: no threshold would move a recent request; {why}"

    def step_back(self, ladder: EscalationLadder) -> KnobSteps | None:
        """Return the lowest steps whose returning requests fit; None if there are none."""
        lower = reversed([*steps_below(ladder.steps)])
        return next((steps for steps in lower if self.fits(steps, ladder.capacity)), None)

    def trial(self, ladder: EscalationLadder) -> KnobSteps | None:
        """Return the nearest lower steps that bring requests back."""
        return next((steps for steps in steps_below(ladder.steps) if self.returning(steps)), None)

    def _asked(self) -> dict[DemandClass, int]:
        return {kind: each.asked for kind, each in self.own.classes.items() if each.asked}

    def _floors_above(self, steps: KnobSteps) -> Iterator[tuple[KnobSteps, int, int]]:
        """Yield the steps that raise the floor above more recent requests than the step before but spare the intent's
        highest priority, each with the floor and how many recent requests are below it. Some of them may have been
        moved by the threshold already: below a floor, they are refused where the second choice has no room."""
        asked, most = self._asked(), self.base.most_steps(self.rules)
        highest = max((kind.priority for kind in asked), default=0)
        before = self._num_below(self.base.in_force(steps, self.rules)[1])
        for number in range(steps.floor + 1, most.floor + 1):
            after = KnobSteps(steps.threshold, number)
            floor = self.base.in_force(after, self.rules)[1]
            if floor > highest:
                return
            if (withheld := self._num_below(floor)) > before:
                yield after, floor, withheld
                before = withheld

    def _num_below(self, floor: int) -> int:
        """Return how many recent requests have a priority below the floor."""
        return sum(num for kind, num in self._asked().items() if kind.priority < floor)

    def _would_move(self, kind: DemandClass, before: KnobSteps, after: KnobSteps) -> bool:
        return self.base.withholds(after, kind, self.rules) and not self.base.withholds(before, kind, self.rules)


def steps_below(steps: KnobSteps) -> Iterator[KnobSteps]:
    """Yield all lower steps, the nearest first: the floor falls before the threshold."""
    for floor in range(steps.floor - 1, -1, -1):
        yield KnobSteps(steps.threshold, floor)
    for threshold in range(steps.threshold - 1, -1, -1):
        yield KnobSteps(threshold, 0)


def advance_ladder(
    ladder: EscalationLadder, view: EscalationView, now: float
) -> tuple[EscalationLadder, EscalationMove | None]:
    """Update the ladder. Return it, and the move if one is due. Applying the same view twice has no further effect."""
    ladder = _timed(ladder, view, now)
    move = _due_move(ladder, view, now)
    if move is None:
        return ladder, None
    is_up = move.what == "escalate"
    capacity = view.total.accepted / view.rules.sustain if is_up else ladder.capacity
    regrets = _regrets(ladder, is_up, now, view.rules)
    moved = EscalationLadder(*move.after, now, fell=not is_up, regrets=regrets, capacity=capacity)
    return _timed(moved, view, now), move


def find_stuck(ladder: EscalationLadder, view: EscalationView, now: float) -> str:
    """Say why an intent that keeps overloading its specialist does not move; empty if it need not or still may."""
    is_due = _has_lasted(ladder.hot_since, view.rules.sustain, now) and _is_settled(ladder, view, now)
    return view.why_no_step(ladder.steps) if is_due and view.step_up(ladder.steps) is None else ""


def _due_move(ladder: EscalationLadder, view: EscalationView, now: float) -> EscalationMove | None:
    rules, steps, total = view.rules, ladder.steps, view.total
    most = view.base.most_steps(rules)
    limit = KnobSteps(min(steps.threshold, most.threshold), min(steps.floor, most.floor))
    if limit != steps:
        why = f"only {sum(most)} levels are configured now" if rules.enabled else "switched off"
        return EscalationMove(steps, limit, "relax", why)
    if not _is_settled(ladder, view, now):
        return None
    refused = f"{total.refused} of {total.asked} requests refused" if total.asked else "no requests"
    if _has_lasted(ladder.hot_since, rules.sustain, now) and (up := view.step_up(steps)) is not None:
        asked = f"{view.own.total.asked} are of {view.intent}, {view.excess:.0f} beyond its share"
        return EscalationMove(steps, up, "escalate", f"{refused} within {rules.sustain:g} s; {asked}")
    if _has_lasted(ladder.fits_since, _pause(ladder, rules), now) and (back := view.step_back(ladder)) is not None:
        num = view.returning(back)
        return EscalationMove(steps, back, "relax", f"{refused}; {num} withheld requests fit again", num)
    if _has_lasted(ladder.calm_since, _patience(ladder, rules), now) and (back := view.trial(ladder)) is not None:
        num = view.returning(back)
        why = f"{refused}, calm for {_patience(ladder, rules):g} s; {num} withheld requests are tried"
        return EscalationMove(steps, back, "relax", why, num)
    return None


def _timed(ladder: EscalationLadder, view: EscalationView, now: float) -> EscalationLadder:
    """Return the ladder with its timers updated, and its capacity if more requests were accepted. A timer that does not
    apply is reset."""
    rules, is_hot, is_raised = view.rules, view.is_hot, ladder.level > 0
    is_calm = is_raised and not is_hot and view.is_calm
    capacity = max(ladder.capacity, view.total.accepted / rules.sustain) if is_raised else 0.0
    ladder = replace(ladder, capacity=capacity)
    does_fit = is_raised and not is_hot and view.step_back(ladder) is not None
    return replace(
        ladder,
        hot_since=_begun(ladder.hot_since, now, rules.sustain) if is_hot else None,
        calm_since=_begun(ladder.calm_since, now, _patience(ladder, rules)) if is_calm else None,
        fits_since=_begun(ladder.fits_since, now, rules.relax) if does_fit else None,
    )


def _begun(since: float | None, now: float, wait: float) -> float:
    """Return when the state began; `now` if it begins now, or if `since` is too far in the future."""
    return now if since is None or since - now > wait else since


def _has_lasted(since: float | None, wait: float, now: float) -> bool:
    return since is not None and now - since >= wait


def _is_settled(ladder: EscalationLadder, view: EscalationView, now: float) -> bool:
    """Whether all counted requests came after the last move at the specialist. A move time far in the future is wrong
    and is ignored."""
    wait = view.rules.sustain + bucket_seconds(view.rules.sustain)
    return all(abs(now - moved) >= wait for moved in (ladder.since, view.moved_at))


def _pause(ladder: EscalationLadder, rules: EscalationConfig) -> float:
    """How long a step back must fit. None at first, so that it comes as soon as the load falls."""
    return min(rules.relax, rules.sustain * float(2 ** (ladder.regrets - 1))) if ladder.regrets else 0.0


def _patience(ladder: EscalationLadder, rules: EscalationConfig) -> float:
    """How long calm must last before a step back is tried that does not fit by the known capacity, which may have
    grown."""
    return rules.relax * float(2**ladder.regrets)


def _regrets(ladder: EscalationLadder, is_up: bool, now: float, rules: EscalationConfig) -> int:
    """Return how many recent steps back had to be undone soon. Without the waits that they double, a load that fits at
    one level only by mistake would make the ladder oscillate. Two steps back in a row, or one that lasts, reset the
    count."""
    if not is_up:
        return 0 if ladder.fell else ladder.regrets
    if not ladder.fell:
        return ladder.regrets
    is_soon = now - ladder.since <= rules.relax + 2 * rules.sustain
    return min(ladder.regrets + 1, _MAX_REGRETS) if is_soon else 0
