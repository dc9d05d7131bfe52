"""Escalation of a specialist that refuses too many requests for too long.

First its shadow threshold rises, so that more low-confidence requests go to their second choice; then the priority
floor rises, so that low priorities are refused. Once the load is calm, the steps are undone in reverse order."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any, Literal

from admission.budgets import Counts, bucket_seconds, restore_record
from octet.config.ensemble import EscalationConfig

EscalationMoveKind = Literal["escalate", "relax"]
_MAX_REGRETS = 4  # the wait for a step back doubles at most this many times


@dataclass(frozen=True, slots=True)
class EscalationLadder:
    """The stored state of one specialist's escalation. Times are Unix seconds."""

    level: int = 0
    since: float = 0.0
    hot_since: float | None = None  # since when every check found overload; None if the last check did not
    calm_since: float | None = None  # since when every check found calm; None if the last check did not
    fell: bool = False  # whether the last move was a step back
    regrets: int = 0  # steps back in a row that soon had to be undone: each doubles the wait for the next one

    def to_body(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> "EscalationLadder":
        """Raises ValueError for an invalid body."""
        ladder = restore_record(cls, body, "an escalation ladder")
        for count in (ladder.level, ladder.regrets):
            if not isinstance(count, int) or count < 0:
                raise ValueError(f"a ladder's level and regrets must be integers of at least 0, got {count!r}")
        return ladder


@dataclass(frozen=True, slots=True)
class EscalationMove:
    at: float
    before: int
    after: int
    what: EscalationMoveKind
    why: str


def count_levels(base_threshold: float, base_floor: int, rules: EscalationConfig) -> int:
    """The number of levels that raise the threshold or the floor of an intent with these configured values."""
    return _threshold_steps(base_threshold, rules) + _floor_steps(base_floor, rules)


def knobs_at_level(level: int, base_threshold: float, base_floor: int, rules: EscalationConfig) -> tuple[float, int]:
    """Return the threshold and the floor at this level: the configured values, raised up to the maxima in `rules`."""
    num_steps = _threshold_steps(base_threshold, rules)
    threshold, floor = base_threshold, base_floor
    if level >= num_steps > 0:
        threshold = rules.max_threshold
    elif level > 0 and num_steps:
        threshold = max(base_threshold, round(base_threshold + level * rules.threshold_step, 9))
    if level > num_steps and base_floor < rules.max_floor:
        floor = min(base_floor + (level - num_steps) * rules.floor_step, rules.max_floor)
    return threshold, floor


def advance_ladder(
    ladder: EscalationLadder, counts: Counts, now: float, rules: EscalationConfig, top: int
) -> tuple[EscalationLadder, EscalationMove | None]:
    """Update the ladder with the counts of the last `rules.sustain` seconds. Return it, and the move if one is due. The
    counts are requests accepted (good) or refused for lack of capacity (bad). The level never exceeds `top`, the
    largest number of levels of any intent of the specialist. Applying the same counts twice has no further effect."""
    limit = top if rules.enabled else 0
    ladder = _timed(ladder, counts, now, rules, limit)
    aim, why = _target_level(ladder, counts, now, rules, limit)
    if aim == ladder.level:
        return ladder, None
    moved, move = _moved(ladder, aim, why, now, rules)
    return _timed(moved, counts, now, rules, limit), move


def _target_level(
    ladder: EscalationLadder, counts: Counts, now: float, rules: EscalationConfig, limit: int
) -> tuple[int, str]:
    """Return the level to move to and the reason; the current level if no move is due."""
    if ladder.level > limit:
        return limit, f"only {limit} levels are configured now" if rules.enabled else "switched off"
    if not _is_settled(ladder, now, rules):
        return ladder.level, ""
    if _has_lasted(ladder.hot_since, rules.sustain, now):
        return ladder.level + 1, f"{_format_refused(counts)}, more than {rules.refused:.1%} for {rules.sustain:g} s"
    if _has_lasted(ladder.calm_since, patience := _patience(ladder, rules), now):
        return ladder.level - 1, f"{_format_refused(counts)}, calm for {patience:g} s"
    return ladder.level, ""


def _threshold_steps(base: float, rules: EscalationConfig) -> int:
    if rules.threshold_step <= 0 or base >= rules.max_threshold:
        return 0
    return max(1, ceil(round((rules.max_threshold - base) / rules.threshold_step, 9)))


def _floor_steps(base: int, rules: EscalationConfig) -> int:
    return max(0, ceil((rules.max_floor - base) / rules.floor_step))


def _is_hot(counts: Counts, rules: EscalationConfig) -> bool:
    return counts.total >= rules.min_requests and counts.bad > rules.refused * counts.total


def _is_calm(counts: Counts, rules: EscalationConfig) -> bool:
    return counts.bad == 0 or counts.bad < rules.calm * counts.total


def _timed(
    ladder: EscalationLadder, counts: Counts, now: float, rules: EscalationConfig, limit: int
) -> EscalationLadder:
    """Return the ladder with its timers updated. If there is neither overload nor calm, both timers are reset."""
    hot_since = calm_since = None
    if _is_hot(counts, rules):
        if ladder.level < limit:
            hot_since = _begun(ladder.hot_since, now, rules.sustain)
    elif _is_calm(counts, rules) and ladder.level > 0:
        calm_since = _begun(ladder.calm_since, now, _patience(ladder, rules))
    return replace(ladder, hot_since=hot_since, calm_since=calm_since)


def _begun(since: float | None, now: float, wait: float) -> float:
    """Return when the overload or calm began; `now` if it begins now, or if `since` is too far in the future."""
    return now if since is None or since - now > wait else since


def _has_lasted(since: float | None, wait: float, now: float) -> bool:
    return since is not None and now - since >= wait


def _is_settled(ladder: EscalationLadder, now: float, rules: EscalationConfig) -> bool:
    """Whether all counted requests came after the last move. A move time far in the future is wrong and is ignored."""
    return abs(now - ladder.since) >= rules.sustain + bucket_seconds(rules.sustain)


def _patience(ladder: EscalationLadder, rules: EscalationConfig) -> float:
    return rules.relax * float(2**ladder.regrets)


def _moved(
    ladder: EscalationLadder, level: int, why: str, now: float, rules: EscalationConfig
) -> tuple[EscalationLadder, EscalationMove]:
    is_up = level > ladder.level
    moved = EscalationLadder(level, now, fell=not is_up, regrets=_regrets(ladder, is_up, now, rules))
    return moved, EscalationMove(now, ladder.level, level, "escalate" if is_up else "relax", why)


def _regrets(ladder: EscalationLadder, is_up: bool, now: float, rules: EscalationConfig) -> int:
    """Return how many recent steps down had to be undone soon. Each doubles the wait for the next step down, up to a
    limit. Without this, a load that is too high at one level and calm at the level above would make the ladder
    oscillate. Two steps down in a row, or a step down that lasts, reset the count."""
    if not is_up:
        return 0 if ladder.fell else ladder.regrets
    if not ladder.fell:
        return ladder.regrets
    is_soon = now - ladder.since <= rules.relax + 2 * rules.sustain
    return min(ladder.regrets + 1, _MAX_REGRETS) if is_soon else 0


def _format_refused(counts: Counts) -> str:
    return f"{counts.bad} of {counts.total} requests refused" if counts.total else "no requests"
