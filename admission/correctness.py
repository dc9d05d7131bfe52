"""Whether a lane may answer, by how its answers were judged: closed, shadow-only, recovering, closed.

Only a rate over enough samples says anything, and a state lasts a whole window: by the end of it nothing that was
judged before its beginning is counted any more, and no rate, however it wavers, moves a breaker twice in one.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from admission.kept import kept
from admission.pass_rate import pass_rate
from admission.window import Counts
from octet.config.ensemble import CorrectnessConfig

_MINUTE, _HOUR = 60.0, 3600.0
State = Literal["closed", "shadow_only", "recovering"]
Hold = Literal["open", "closed"]
Shown = Literal["closed", "shadow_only", "recovering", "held_open", "held_closed"]
What = Literal["trip", "recover", "close", "relapse"]


@dataclass(frozen=True, slots=True)
class Rules:
    floor: float | None
    """A pass rate below it is a breach; None: nothing ever is, and nothing ever moves."""
    min_samples: int
    window: float
    """Seconds."""
    breach: float
    """Seconds that the rate must stay below the floor."""


def rules_of(config: CorrectnessConfig, floor: float | None) -> Rules:
    """`floor` is the specialist's own."""
    return Rules(floor, config.min_samples, config.window, config.breach)


@dataclass(frozen=True, slots=True)
class Standing:
    """All that is remembered of one breaker. Times are unix seconds."""

    state: State = "closed"
    since: float = 0.0
    transition_at: float | None = None
    """When it last changed its state; None: never."""
    below_since: float | None = None
    """The rate was below the floor whenever it was known from then on; None: it was not below when last known."""
    above_since: float | None = None
    """The same the other way round, while recovering."""
    hold: Hold | None = None
    hold_by: str = ""
    hold_why: str = ""
    hold_since: float = 0.0

    def to_body(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> "Standing":
        """Raises ValueError for what is none."""
        standing = kept(cls, body, "a breaker's standing")
        if standing.state not in get_args(State) or standing.hold not in (None, *get_args(Hold)):
            raise ValueError(f"no breaker is {standing.state!r} and held {standing.hold!r}")
        times = (standing.transition_at, standing.below_since, standing.above_since)
        for time in (standing.since, standing.hold_since, *(time for time in times if time is not None)):
            if isinstance(time, bool) or not isinstance(time, int | float):
                raise ValueError(f"a breaker's times are numbers, not {time!r}")
        return standing


@dataclass(frozen=True, slots=True)
class Transition:
    at: float
    before: State
    after: State
    what: What
    why: str


def begin(now: float) -> Standing:
    """Of a lane that nothing is known of."""
    return Standing(since=now)


def step(standing: Standing, counts: Counts, now: float, rules: Rules) -> tuple[Standing, Transition | None]:
    """What `counts`, those of the last `rules.window` seconds, make of it. Too few samples make nothing of it: the
    standing stays as it is, timers and all.

    A time in which nobody looked, or there were too few samples, belongs to a breach when the rate was below the floor
    on both sides of it, and to a recovery when it was not; unless it was so long that no sample of the one side can
    have been left on the other. Stepping a standing that was already stepped changes nothing."""
    rate = counts.rate
    if rules.floor is None or rate is None or counts.total < rules.min_samples:
        return standing, None
    standing = _timed(standing, rate < rules.floor, now, rules)
    what = _due(standing, rate < rules.floor, now, rules)
    if what is None:
        return standing, None
    why = f"{pass_rate(counts)}, the floor is {rules.floor:.1%}; {_because(what, rules)}"
    return _moved(standing, what, why, now)


def hold(standing: Standing, held: Hold, by: str, why: str, now: float) -> Standing:
    """By an operator, until released: open, it only shadows; closed, it serves. What is known of its answers goes on
    moving the state below."""
    return replace(standing, hold=held, hold_by=by, hold_why=why, hold_since=now)


def release(standing: Standing) -> Standing:
    return replace(standing, hold=None, hold_by="", hold_why="", hold_since=0.0)


def serves(standing: Standing) -> bool:
    """One that recovers does not yet: its answers go on being shadows until the window is over."""
    return standing.hold == "closed" if standing.hold else standing.state == "closed"


def shown(standing: Standing) -> Shown:
    if standing.hold:
        return "held_open" if standing.hold == "open" else "held_closed"
    return standing.state


def outlook(standing: Standing, counts: Counts, now: float, rules: Rules) -> str:
    """What would happen next, and when, for people."""
    text = _outlook(standing, counts, now, rules)
    if not standing.hold:
        return text
    return f"held {standing.hold} until released; without the hold: {standing.state.replace('_', '-')}, {text}"


def _timed(standing: Standing, is_below: bool, now: float, rules: Rules) -> Standing:
    """With the timers of its state as they are after a look at the rate."""
    transition_at = standing.transition_at
    if transition_at is not None and transition_at - now > rules.window:
        transition_at = now
    below_since = above_since = None
    if standing.state != "shadow_only" and is_below:
        below_since = _begun(standing.below_since, now, rules.breach, rules)
    if standing.state == "recovering" and not is_below:
        above_since = _begun(standing.above_since, now, rules.window, rules)
    return replace(standing, transition_at=transition_at, below_since=below_since, above_since=above_since)


def _begun(since: float | None, now: float, wait: float, rules: Rules) -> float:
    """When what is the case now began. Whoever looks at least once a window moves the breaker before a wait and a
    window are over; later than that, nobody looked. A time more than a window ahead is that of a clock gone wrong."""
    if since is None or now - since > max(wait, rules.window) + rules.window or since - now > rules.window:
        return now
    return since


def _due(standing: Standing, is_below: bool, now: float, rules: Rules) -> What | None:
    if _dwell_left(standing, now, rules) > 0:
        return None
    if standing.state == "shadow_only":
        return None if is_below else "recover"
    if standing.below_since is not None and now - standing.below_since >= rules.breach:
        return "trip" if standing.state == "closed" else "relapse"
    if standing.above_since is not None and now - standing.above_since >= rules.window:
        return "close"
    return None


def _dwell_left(standing: Standing, now: float, rules: Rules) -> float:
    """Seconds until it may change its state again."""
    if standing.transition_at is None:
        return 0.0
    return max(0.0, rules.window - (now - standing.transition_at))


_AFTER: Mapping[What, State] = {
    "trip": "shadow_only",
    "recover": "recovering",
    "close": "closed",
    "relapse": "shadow_only",
}


def _moved(standing: Standing, what: What, why: str, now: float) -> tuple[Standing, Transition]:
    after = _AFTER[what]
    moved = replace(
        standing,
        state=after,
        since=now,
        transition_at=now,
        below_since=None,
        above_since=now if after == "recovering" else None,
    )
    return moved, Transition(now, standing.state, after, what, why)


def _because(what: What, rules: Rules) -> str:
    return {
        "trip": f"below it for {_length(rules.breach)}",
        "recover": f"reached again over a whole window of {_length(rules.window)} since it only shadows",
        "close": f"never below it for {_length(rules.window)}",
        "relapse": f"below it again for {_length(rules.breach)}",
    }[what]


def _outlook(standing: Standing, counts: Counts, now: float, rules: Rules) -> str:
    rate = counts.rate
    if rules.floor is None:
        stuck = "" if standing.state == "closed" else "; without a floor only a hold lets it serve"
        return f"no floor: measured, and nothing follows{stuck}"
    if rate is None or counts.total < rules.min_samples:
        return f"{counts.total} of {rules.min_samples} samples"
    timed = _timed(standing, rate < rules.floor, now, rules)
    left = _dwell_left(timed, now, rules)
    return _course(timed, now, rules) + (f"; not before another {_length(left)}" if left > 0 else "")


def _course(standing: Standing, now: float, rules: Rules) -> str:
    """Where enough samples are there."""
    if standing.below_since is not None:
        return f"below the floor for {_progress(now - standing.below_since, rules.breach)}, then shadow-only"
    if standing.above_since is not None:
        return f"above the floor for {_progress(now - standing.above_since, rules.window)}, then closed"
    if standing.state == "shadow_only":
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
