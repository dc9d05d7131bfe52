"""Circuit breakers: one for the health of a callee, one for the correctness of a lane's answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any, Literal, TypeVar, get_args

from admission.budgets import Counts, format_pass_rate, restore_record
from admission.collapse import DEGENERATE, SPAN, Collapse, is_over
from admission.floors import Floor
from octet.clock import Clock
from octet.config.ensemble import CorrectnessConfig

CircuitState = Literal["closed", "open", "half_open"]


class CircuitBreaker:
    """Opens after a number of consecutive failures and allows one probe after a cool-down. Each failed probe doubles
    the cool-down, up to a maximum; a success resets it."""

    def __init__(self, clock: Clock, *, failures: int, cool_down: float, max_cool_down: float) -> None:
        if failures < 1:
            raise ValueError(f"failures must be at least 1, got {failures}")
        if not 0 < cool_down <= max_cool_down:
            raise ValueError(f"cool_down must be in (0, {max_cool_down:g}] seconds, got {cool_down:g}")
        self._clock = clock
        self._most_failures = failures
        self._first_cool_down = cool_down
        self._max_cool_down = max_cool_down
        self._num_failures = 0
        self._cool_down = cool_down
        self._opened: float | None = None
        self._probed: float | None = None  # when the current probe was allowed

    @property
    def state(self) -> CircuitState:
        if self._opened is None:
            return "closed"
        return "open" if self._clock.now() - self._opened < self._cool_down else "half_open"

    @property
    def would_allow(self) -> bool:
        state = self.state
        return state == "closed" or (state == "half_open" and not self._is_probing)

    def allow(self) -> bool:
        """Return whether a call may be sent now. While half-open, that call is the probe. The caller reports its result
        with `succeeded`, `failed` or `gave_up`; without a result, the next probe is allowed after a cool-down."""
        if not self.would_allow:
            return False
        if self._opened is not None:
            self._probed = self._clock.now()
        return True

    def succeeded(self) -> None:
        self._num_failures = 0
        self._cool_down = self._first_cool_down
        self._opened = self._probed = None

    def failed(self) -> None:
        if self.state == "closed":
            self._num_failures += 1
            if self._num_failures < self._most_failures:
                return
        self.trip()

    def gave_up(self) -> None:
        """Record that the call ended without a result, so that the next call may be the probe."""
        self._probed = None

    def probe_now(self) -> None:
        """Record a sign that the callee is alive: if the breaker is open, allow a probe now."""
        if self.state == "open":
            self._opened = -inf

    def trip(self) -> None:
        """Open immediately. An open breaker is unchanged; a half-open one doubles its cool-down."""
        state = self.state
        if state == "open":
            return
        if state == "half_open":
            self._cool_down = min(self._cool_down * 2, self._max_cool_down)
        self._opened = self._clock.now()
        self._probed = None

    @property
    def _is_probing(self) -> bool:
        return self._probed is not None and self._clock.now() - self._probed < self._cool_down


_ItemT = TypeVar("_ItemT")


def filter_ejected(
    items: Sequence[_ItemT], *, is_closed: Callable[[_ItemT], bool], is_broken: Callable[[_ItemT], bool]
) -> list[_ItemT]:
    """Return the healthy items: neither closed (taking no requests) nor broken (failing). If none is healthy, return
    the broken ones that are not closed, which may have recovered. If all are closed, return all."""
    serving = [item for item in items if not is_closed(item)]
    healthy = [item for item in serving if not is_broken(item)]
    return healthy or serving or list(items)


_MINUTE, _HOUR = 60.0, 3600.0
BreakerState = Literal["closed", "shadow_only", "recovering"]
BreakerHold = Literal["open", "closed"]
BreakerStatus = Literal["closed", "shadow_only", "recovering", "held_open", "held_closed"]
BreakerTransitionKind = Literal["trip", "collapse", "recover", "close", "relapse"]
"""The correctness breaker moves from closed to shadow-only to recovering, then to closed or back to shadow-only. It
needs enough samples to move and stays in each state for at least a window, so no result counts for two transitions. A
collapse moves it to shadow-only at once; then a whole span of answers must be as usual before it leaves that state."""


@dataclass(frozen=True, slots=True)
class CorrectnessRules:
    floor: float | None  # a pass rate below the floor is a breach. None: the breaker never moves.
    min_samples: int
    window: float  # seconds
    breach: float  # seconds that the rate must stay below the floor before the breaker trips
    is_learned: bool = False  # whether the floor was learned
    learning: str = ""  # without a floor: how far learning it is; empty if it is not learned
    verifier: str = ""  # that judged the counted answers


def choose_correctness_rules(
    config: CorrectnessConfig, floor: Floor | None, learning: str = "", verifier: str = ""
) -> CorrectnessRules:
    """Return the rules of one specialist's breaker; `floor` and its `verifier` are the ones that decide now."""
    rate, is_learned = (None, False) if floor is None else (floor.rate, floor.is_learned)
    return CorrectnessRules(rate, config.min_samples, config.window, config.breach, is_learned, learning, verifier)


@dataclass(frozen=True, slots=True)
class BreakerRecord:
    """The stored state of one correctness breaker. Times are Unix seconds."""

    state: BreakerState = "closed"
    since: float = 0.0
    transition_at: float | None = None  # when the state last changed; None if it never did
    below_since: float | None = None
    """When the rate fell below the floor and stayed there; None if the last known rate was not below it."""
    below_by: str = ""  # the verifier whose floor that is; empty if it is not known
    demoted_by: str = ""  # the verifier whose floor the lane must reach again; empty if it serves or none is known
    above_since: float | None = None  # while recovering: when the rate reached the floor and stayed there
    collapse: str = ""  # why the lane collapsed; empty if it did not, or serves again
    usual: float = 0.0  # the share of degenerate answers that was usual then
    hold: BreakerHold | None = None
    hold_by: str = ""
    hold_why: str = ""
    hold_since: float = 0.0

    def to_body(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> "BreakerRecord":
        """Raises ValueError for an invalid body."""
        later = {"below_by": "", "demoted_by": "", "collapse": "", "usual": 0.0}  # older versions store none of these
        record = restore_record(cls, {**later, **body}, "a breaker record")
        if record.state not in get_args(BreakerState) or record.hold not in (None, *get_args(BreakerHold)):
            raise ValueError(f"invalid breaker state {record.state!r} or hold {record.hold!r}")
        for text in (record.collapse, record.below_by, record.demoted_by):
            if not isinstance(text, str):
                raise ValueError(f"a breaker's collapse and verifiers must be text, got {text!r}")
        times = (record.usual, record.transition_at, record.below_since, record.above_since)
        for time in (record.since, record.hold_since, *(time for time in times if time is not None)):
            if isinstance(time, bool) or not isinstance(time, int | float):
                raise ValueError(f"a breaker's times must be numbers, got {time!r}")
        return record


@dataclass(frozen=True, slots=True)
class BreakerTransition:
    at: float
    before: BreakerState
    after: BreakerState
    what: BreakerTransitionKind
    why: str


_NO_COUNTS = Counts()


@dataclass(frozen=True, slots=True)
class CollapseSigns:
    """What the lane's newest judged answers show."""

    recent: Counts = _NO_COUNTS  # `bad` are degenerate
    collapse: Collapse | None = None


_NO_SIGNS = CollapseSigns()


def advance_breaker(
    record: BreakerRecord, counts: Counts, now: float, rules: CorrectnessRules, signs: CollapseSigns = _NO_SIGNS
) -> tuple[BreakerRecord, BreakerTransition | None]:
    """Update the record with the counts of the last `rules.window` seconds. Return the new record, and the transition
    if one is due. Without a floor, or with too few samples, the record is unchanged, so a short gap in the samples does
    not interrupt a breach or a recovery (see `_begun`). Applying the same counts twice has no further effect. A
    collapse needs neither: it opens the breaker at once."""
    if signs.collapse is not None and record.state != "shadow_only":
        fallen = replace(record, collapse=str(signs.collapse), usual=signs.collapse.share)
        return _moved(fallen, "collapse", fallen.collapse, now)
    if rules.learning and not record.collapse:  # an operator has had the floor forgotten
        return replace(record, below_since=None, below_by="", above_since=None), None
    is_below = _is_below(record, counts, rules, signs.recent)
    if is_below is None:
        return record, None
    record = _timed(record, is_below, now, rules)
    what = _due(record, is_below, now, rules)
    if what is None:
        return record, None
    because = _TRANSITIONS[what][1].format(breach=_length(rules.breach), window=_length(rules.window))
    return _moved(record, what, f"{_measured(record, counts, rules, signs.recent)}; {because}", now)


def _is_below(record: BreakerRecord, counts: Counts, rules: CorrectnessRules, recent: Counts) -> bool | None:
    """Whether the lane is below its floor or, after a collapse, still degenerate; None if that is unknown. To open the
    breaker, a learned floor must be breached beyond doubt; to close it again, the pass rate must reach the floor."""
    is_failing = None
    if rules.floor is not None and counts.rate is not None and counts.total >= rules.min_samples:
        floor = Floor(rules.floor, rules.is_learned)
        is_failing = floor.is_breached(counts) if record.state == "closed" else counts.rate < floor.rate
    if not record.collapse or (is_failing is None and record.demoted_by and rules.floor is not None):
        return is_failing
    return None if recent.total < SPAN else bool(is_failing) or not is_over(recent, record.usual)


def _measured(record: BreakerRecord, counts: Counts, rules: CorrectnessRules, recent: Counts) -> str:
    newest = f"{recent.bad} of the last {recent.total} judged answers are {DEGENERATE}" if record.collapse else ""
    if rules.floor is None:
        return newest
    passed = f"{format_pass_rate(counts)}, the floor is {Floor(rules.floor, rules.is_learned)}"
    return f"{newest}, {passed}" if newest else passed


def hold_breaker(record: BreakerRecord, held: BreakerHold, by: str, why: str, now: float) -> BreakerRecord:
    """Return the record with an operator's hold, which lasts until `release_breaker`. While the breaker is held open,
    the lane gets only shadow traffic; while it is held closed, the lane serves. The underlying state keeps updating."""
    return replace(record, hold=held, hold_by=by, hold_why=why, hold_since=now)


def release_breaker(record: BreakerRecord) -> BreakerRecord:
    return replace(record, hold=None, hold_by="", hold_why="", hold_since=0.0)


def may_serve(record: BreakerRecord) -> bool:
    """Whether the lane may serve callers. An operator's hold overrides the state; a recovering lane does not serve."""
    return record.hold == "closed" if record.hold else record.state == "closed"


def breaker_status(record: BreakerRecord) -> BreakerStatus:
    if record.hold:
        return "held_open" if record.hold == "open" else "held_closed"
    return record.state


def describe_breaker_outlook(
    record: BreakerRecord, counts: Counts, now: float, rules: CorrectnessRules, signs: CollapseSigns = _NO_SIGNS
) -> str:
    """Describe the next transition and when it is due."""
    text = _outlook(record, counts, now, rules, signs.recent)
    if record.collapse:
        text = f"collapsed: {record.collapse}; {text}"
    if not record.hold:
        return text
    return f"held {record.hold} until released; without the hold: {record.state.replace('_', '-')}, {text}"


def _timed(record: BreakerRecord, is_below: bool, now: float, rules: CorrectnessRules) -> BreakerRecord:
    """Return the record with its timers updated; `is_below` is whether the pass rate is below the floor."""
    transition_at = record.transition_at
    if transition_at is not None and transition_at - now > rules.window:
        transition_at = now
    below_since = above_since = None
    below_by = ""
    if record.state != "shadow_only" and is_below:
        is_same = record.below_by in ("", rules.verifier)
        below_since = _begun(record.below_since if is_same else None, now, rules.breach, rules)
        below_by = rules.verifier
    if record.state == "recovering" and not is_below:
        above_since = _begun(record.above_since, now, rules.window, rules)
    timed = replace(record, transition_at=transition_at, below_since=below_since, above_since=above_since)
    return replace(timed, below_by=below_by)


def _begun(since: float | None, now: float, wait: float, rules: CorrectnessRules) -> float:
    """Return `since`, the start of a breach or recovery, or `now` if `since` is missing or implausible. At least one
    check is expected per window, so a start too long ago means missed checks. A start far in the future is wrong."""
    if since is None or now - since > max(wait, rules.window) + rules.window or since - now > rules.window:
        return now
    return since


def _due(record: BreakerRecord, is_below: bool, now: float, rules: CorrectnessRules) -> BreakerTransitionKind | None:
    if _dwell_left(record, now, rules) > 0:
        return None
    if record.state == "shadow_only":
        return None if is_below else "recover"
    if record.below_since is not None and now - record.below_since >= rules.breach:
        return "trip" if record.state == "closed" else "relapse"
    if record.above_since is not None and now - record.above_since >= rules.window:
        return "close"
    return None


def _dwell_left(record: BreakerRecord, now: float, rules: CorrectnessRules) -> float:
    if record.transition_at is None:
        return 0.0
    return max(0.0, rules.window - (now - record.transition_at))


_TRANSITIONS: Mapping[BreakerTransitionKind, tuple[BreakerState, str]] = {  # the next state and the reason
    "trip": ("shadow_only", "below it for {breach}"),
    "collapse": ("shadow_only", "collapsed"),
    "recover": ("recovering", "reached again over a whole window of {window} in shadow-only"),
    "close": ("closed", "never below it for {window}"),
    "relapse": ("shadow_only", "below it again for {breach}"),
}


def _moved(
    record: BreakerRecord, what: BreakerTransitionKind, why: str, now: float
) -> tuple[BreakerRecord, BreakerTransition]:
    after = _TRANSITIONS[what][0]
    moved = replace(
        record,
        state=after,
        since=now,
        transition_at=now,
        below_since=None,
        below_by="",
        demoted_by=""
        if after == "closed"
        else record.demoted_by
        if what in ("recover", "collapse")
        else record.below_by,
        above_since=now if after == "recovering" else None,
        collapse="" if after == "closed" else record.collapse,
    )
    return moved, BreakerTransition(now, record.state, after, what, why)


def _outlook(record: BreakerRecord, counts: Counts, now: float, rules: CorrectnessRules, recent: Counts) -> str:
    rate = counts.rate
    if record.collapse:
        is_below = _is_below(record, counts, rules, recent)
        if is_below is None:
            return f"{recent.total} of {SPAN} answers judged since"
        if is_below and record.state == "shadow_only":
            return "recovering once its answers are as usual"
        return _outlook_at(record, now, rules, is_below=is_below)
    if rules.floor is None and rules.learning and record.state == "closed":
        return f"learning the floor: {rules.learning}"
    if rules.floor is None:
        stuck = "" if record.state == "closed" else "; without a floor, only a hold lets it serve"
        return f"no floor; pass rate is only recorded{stuck}"
    if rate is None or counts.total < rules.min_samples:
        return f"{counts.total} of {rules.min_samples} samples"
    return _outlook_at(record, now, rules, is_below=bool(_is_below(record, counts, rules, recent)))


def _outlook_at(record: BreakerRecord, now: float, rules: CorrectnessRules, *, is_below: bool) -> str:
    timed = _timed(record, is_below, now, rules)
    left = _dwell_left(timed, now, rules)
    return _course(timed, now, rules) + (f"; not within the next {_length(left)}" if left > 0 else "")


def _course(record: BreakerRecord, now: float, rules: CorrectnessRules) -> str:
    if record.below_since is not None:
        return f"below the floor for {_progress(now - record.below_since, rules.breach)}, then shadow-only"
    if record.above_since is not None:
        return f"above the floor for {_progress(now - record.above_since, rules.window)}, then closed"
    if record.state == "shadow_only":
        return "recovering once the rate is above the floor"
    return "above the floor"


def _progress(done: float, wait: float) -> str:
    size, unit = _unit(wait)
    return f"{_number(max(0.0, min(done, wait)) / size)} of {_number(wait / size)} {unit}"


def _length(seconds: float) -> str:
    size, unit = _unit(seconds)
    return f"{_number(seconds / size)} {unit}"


def _unit(seconds: float) -> tuple[float, str]:
    if seconds >= 2 * _HOUR:
        return _HOUR, "h"
    return (_MINUTE, "min") if seconds >= 2 * _MINUTE else (1.0, "s")


def _number(amount: float) -> str:
    return f"{amount:.0f}" if amount >= 10 else f"{amount:.2g}"
