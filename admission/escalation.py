"""What is done about a specialist that refuses too much for too long: first more of what nobody is sure of goes to
second choices, then low priorities are turned away; and back again in reverse order."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import ceil
from typing import Any, Literal

from admission.kept import kept
from admission.window import Counts, grain_of
from octet.config.ensemble import EscalationConfig

What = Literal["escalate", "relax"]
_MOST_REGRETS = 4
"""A step back waits at most 2 to the power of this times as long as the first."""


@dataclass(frozen=True, slots=True)
class Rules:
    enabled: bool
    refused: float
    """A share of the requests above this is too much."""
    calm: float
    """A share below this is none."""
    min_requests: int
    sustain: float
    """Seconds of too much for a step up; and those that are counted."""
    relax: float
    """Seconds of none for a step back."""
    threshold_step: float
    max_threshold: float
    floor_step: int
    max_floor: int


def rules_of(config: EscalationConfig) -> Rules:
    return Rules(**{field.name: getattr(config, field.name) for field in fields(Rules)})


@dataclass(frozen=True, slots=True)
class Ladder:
    """All that is remembered of one specialist's. Times are unix seconds."""

    level: int = 0
    since: float = 0.0
    hot_since: float | None = None
    """It refused too much whenever somebody looked from then on; None: not when somebody looked last."""
    calm_since: float | None = None
    """The same for none."""
    fell: bool = False
    """The last move was a step back."""
    regrets: int = 0
    """Steps back in a row that had to be taken up again soon: the next one waits twice as long for each."""

    def to_body(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> "Ladder":
        """Raises ValueError for what is none."""
        ladder = kept(cls, body, "a ladder")
        for count in (ladder.level, ladder.regrets):
            if not isinstance(count, int) or count < 0:
                raise ValueError(f"a ladder's level and regrets are whole numbers from 0 on, not {count!r}")
        return ladder


@dataclass(frozen=True, slots=True)
class Move:
    at: float
    before: int
    after: int
    what: What
    why: str


def levels(base_threshold: float, base_floor: int, rules: Rules) -> int:
    """How many of them change something for an intent that is so configured."""
    return _threshold_steps(base_threshold, rules) + _floor_steps(base_floor, rules)


def knobs_at(level: int, base_threshold: float, base_floor: int, rules: Rules) -> tuple[float, int]:
    """Threshold and floor. Never below what is configured, nor above the most unless that is."""
    num_steps = _threshold_steps(base_threshold, rules)
    threshold, floor = base_threshold, base_floor
    if level >= num_steps > 0:
        threshold = rules.max_threshold
    elif level > 0 and num_steps:
        threshold = max(base_threshold, round(base_threshold + level * rules.threshold_step, 9))
    if level > num_steps and base_floor < rules.max_floor:
        floor = min(base_floor + (level - num_steps) * rules.floor_step, rules.max_floor)
    return threshold, floor


def step(ladder: Ladder, counts: Counts, now: float, rules: Rules, top: int) -> tuple[Ladder, Move | None]:
    """What `counts` of the last `rules.sustain` seconds, of requests it took (good) and those it had no room for (bad),
    make of it. Never above `top`, the most `levels` of the intents that it may get. Stepping a ladder that was already
    stepped changes nothing."""
    limit = top if rules.enabled else 0
    ladder = _timed(ladder, counts, now, rules, limit)
    aim, why = _aim(ladder, counts, now, rules, limit)
    if aim == ladder.level:
        return ladder, None
    moved, move = _moved(ladder, aim, why, now, rules)
    return _timed(moved, counts, now, rules, limit), move


def outlook(ladder: Ladder, counts: Counts, now: float, rules: Rules, top: int) -> str:
    """What would happen next, and when, for people."""
    if not rules.enabled:
        return "switched off"
    timed = _timed(ladder, counts, now, rules, top)
    if timed.hot_since is not None:
        progress = _progress(timed.hot_since, rules.sustain, now)
        return f"{_said(counts)}; too much for {progress}, then level {timed.level + 1}"
    if timed.calm_since is not None:
        return f"calm for {_progress(timed.calm_since, _patience(timed, rules), now)}, then level {timed.level - 1}"
    if _is_hot(counts, rules):
        return f"{_said(counts)}; no level is left"
    return "calm" if _is_calm(counts, rules) else f"{_said(counts)}; stays at level {timed.level}"


def _aim(ladder: Ladder, counts: Counts, now: float, rules: Rules, limit: int) -> tuple[int, str]:
    """The level where it belongs by now, and why."""
    if ladder.level > limit:
        return limit, f"there are {limit} levels now" if rules.enabled else "switched off"
    if not _is_settled(ladder, now, rules):
        return ladder.level, ""
    if _has_lasted(ladder.hot_since, rules.sustain, now):
        return ladder.level + 1, f"{_said(counts)}, more than {rules.refused:.1%} for {rules.sustain:g} s"
    if _has_lasted(ladder.calm_since, patience := _patience(ladder, rules), now):
        return ladder.level - 1, f"{_said(counts)}, none to speak of for {patience:g} s"
    return ladder.level, ""


def _threshold_steps(base: float, rules: Rules) -> int:
    if rules.threshold_step <= 0 or base >= rules.max_threshold:
        return 0
    return max(1, ceil(round((rules.max_threshold - base) / rules.threshold_step, 9)))


def _floor_steps(base: int, rules: Rules) -> int:
    return max(0, ceil((rules.max_floor - base) / rules.floor_step))


def _is_hot(counts: Counts, rules: Rules) -> bool:
    return counts.total >= rules.min_requests and counts.bad > rules.refused * counts.total


def _is_calm(counts: Counts, rules: Rules) -> bool:
    return counts.bad == 0 or counts.bad < rules.calm * counts.total


def _timed(ladder: Ladder, counts: Counts, now: float, rules: Rules, limit: int) -> Ladder:
    """With its timers as they are after a look: those that lead somewhere. Between too much and none both begin
    anew."""
    hot_since = calm_since = None
    if _is_hot(counts, rules):
        if ladder.level < limit:
            hot_since = _begun(ladder.hot_since, now, rules.sustain)
    elif _is_calm(counts, rules) and ladder.level > 0:
        calm_since = _begun(ladder.calm_since, now, _patience(ladder, rules))
    return replace(ladder, hot_since=hot_since, calm_since=calm_since)


def _begun(since: float | None, now: float, wait: float) -> float:
    """A time further ahead than the wait is that of a clock gone wrong."""
    return now if since is None or since - now > wait else since


def _has_lasted(since: float | None, wait: float, now: float) -> bool:
    return since is not None and now - since >= wait


def _is_settled(ladder: Ladder, now: float, rules: Rules) -> bool:
    """Nothing that came before the last move is counted any more; or that was by a clock gone wrong."""
    return abs(now - ladder.since) >= rules.sustain + grain_of(rules.sustain)


def _patience(ladder: Ladder, rules: Rules) -> float:
    return rules.relax * float(2**ladder.regrets)


def _moved(ladder: Ladder, level: int, why: str, now: float, rules: Rules) -> tuple[Ladder, Move]:
    """To another level, where the evidence begins anew."""
    is_up = level > ladder.level
    moved = Ladder(level, now, fell=not is_up, regrets=_regrets(ladder, is_up, now, rules))
    return moved, Move(now, ladder.level, level, "escalate" if is_up else "relax", why)


def _regrets(ladder: Ladder, is_up: bool, now: float, rules: Rules) -> int:
    """Under a load that is too much on one level and none on the next, steps back would be taken and regretted for
    ever: each that is regretted makes the next one rarer. Two in a row, or one that holds, and all is forgotten."""
    if not is_up:
        return 0 if ladder.fell else ladder.regrets
    if not ladder.fell:
        return ladder.regrets
    is_soon = now - ladder.since <= rules.relax + 2 * rules.sustain
    return min(ladder.regrets + 1, _MOST_REGRETS) if is_soon else 0


def _said(counts: Counts) -> str:
    return f"{counts.bad} of {counts.total} requests refused" if counts.total else "nothing was asked"


def _progress(since: float, wait: float, now: float) -> str:
    return f"{max(0.0, min(now - since, wait)):.0f} of {wait:g} s"
