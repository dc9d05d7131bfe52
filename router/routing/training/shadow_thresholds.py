"""Propose shadow thresholds with 95 % intervals, from stored comparisons, as text or JSON."""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil, exp, floor, lgamma, log, sqrt
from pathlib import Path
from typing import Any, Literal, TextIO

from google.protobuf.json_format import Parse, ParseError

from admission.knobs import UNSPECIFIED_INTENT
from octet.client.records import Comparison
from octet.terminal import format_table
from octet.v1 import operator_pb2 as wire

GRID = 100
_THRESHOLDS = [hundredths / GRID for hundredths in range(GRID + 1)]
_STEP = 5  # hundredths between table rows
_TAIL = 0.025
_Z = 1.959964  # the quantile of the normal distribution with _TAIL above it
_LOW_CONFIDENCE = "low_confidence"
_JUDGED = frozenset({"passed", "failed"})
_HEADING = ("threshold", "shadows", "of today's", "disagreements caught", "saves caught", "95 %", "losses")
_UPPERMOST = 0.8  # requests above this quantile of confidence are reported separately
_EXPLORE = 0.1
_NOT_WORTH = 0.01
LEGEND = """\
Only requests that were shadowed for low confidence are counted; requests above the threshold of their time are not.
A save: only the shadow's answer passed its verifier. A loss: only the primary's did. Of today's: the share of the
recorded shadows."""
GoalAim = Literal["saves", "disagreements"]
AIM_LABELS: dict[GoalAim, str] = {
    "saves": "requests in which only the shadow was right",
    "disagreements": "requests in which the two disagreed",
}


def share_interval(hits: int, total: int) -> tuple[float, float]:
    """Return the Wilson score interval of the share; (0, 1) without data."""
    if total == 0:
        return 0.0, 1.0
    share, square = hits / total, _Z * _Z
    centre = share + square / (2 * total)
    spread = _Z * sqrt(share * (1 - share) / total + square / (4 * total * total))
    low, high = ((centre + sign * spread) / (1 + square / total) for sign in (-1, 1))
    return (0.0 if hits == 0 else max(0.0, low)), (1.0 if hits == total else min(1.0, high))


def min_cases(share: float) -> int:
    """Return the fewest cases for which the confidence interval of the quantile `share` is bounded on both sides."""
    return ceil(log(_TAIL) / log(max(share, 1 - share)))


def quantile_ranks(share: float, total: int) -> tuple[int, int]:
    """Return the ranks between which the quantile `share` of `total` sorted cases lies with 95 % confidence. Rank 0 is
    the first case, -1 lies before it, and `total` after the last. The share must be within (0, 1)."""
    low, below = -1, 0.0
    for rank in range(total):
        log_binomial = lgamma(total + 1) - lgamma(rank + 1) - lgamma(total - rank + 1)
        below += exp(log_binomial + rank * log(share) + (total - rank) * log(1 - share))
        if below <= _TAIL:
            low = rank
        if below >= 1 - _TAIL:
            return low, rank
    return low, total


@dataclass(frozen=True, slots=True)
class CatchGoal:
    share: float
    aim: GoalAim = "saves"

    def __str__(self) -> str:
        return f"the smallest threshold that catches {self.share:.0%} of the {AIM_LABELS[self.aim]}"


@dataclass(frozen=True, slots=True)
class BudgetGoal:
    share: float

    def __str__(self) -> str:
        return f"the largest threshold that keeps at most {self.share:.0%} of today's shadows"


ThresholdGoal = CatchGoal | BudgetGoal


@dataclass(frozen=True, slots=True, order=True)
class ComparisonPoint:
    confidence: float
    disagreed: bool
    judged: bool  # both answers were verified
    saved: bool  # only the shadow passed
    lost: bool  # only the primary passed: the cost of letting the second choice answer


def comparison_point(comparison: Comparison) -> ComparisonPoint | None:
    """Return the data point of a comparison whose shadow was sent because of low confidence; None for others."""
    confidence = comparison.confidence
    if comparison.why != _LOW_CONFIDENCE or confidence is None or not 0 <= confidence <= 1:
        return None
    outcomes = (comparison.primary_outcome, comparison.shadow_outcome)
    saved, lost = outcomes == ("failed", "passed"), outcomes == ("passed", "failed")
    return ComparisonPoint(confidence, not comparison.agreed, _JUDGED.issuperset(outcomes), saved, lost)


@dataclass(frozen=True, slots=True)
class ThresholdRow:
    threshold: float
    shadowed: int  # requests below the threshold
    disagreements: int
    saves: int
    losses: int
    saves_interval: tuple[float, float]  # the interval of the share of all saves that the threshold catches


class ThresholdCurve:
    def __init__(self, points: Sequence[ComparisonPoint]) -> None:
        """`points` must not be empty."""
        self._points = ordered = sorted(points)
        self.confidences = [point.confidence for point in ordered]
        self.reach = self.confidences[-1]  # the highest confidence in the data
        self.total = len(ordered)
        self.judged = sum(point.judged for point in ordered)
        self.disagreements = sum(point.disagreed for point in ordered)
        self.saves = sum(point.saved for point in ordered)

    def caught(self, aim: GoalAim) -> list[float]:
        """Return the confidences, ascending, of all saves or of all disagreements, depending on `aim`."""
        return [each.confidence for each in self._points if (each.saved if aim == "saves" else each.disagreed)]

    def at(self, threshold: float) -> ThresholdRow:
        below = self._points[: bisect_left(self.confidences, threshold)]
        disagreements, saves, losses = (
            sum(getattr(each, name) for each in below) for name in ("disagreed", "saved", "lost")
        )
        return ThresholdRow(threshold, len(below), disagreements, saves, losses, share_interval(saves, self.saves))

    def rows(self) -> list[ThresholdRow]:
        """Return a row per threshold, in steps of _STEP hundredths, up to a step above the highest confidence."""
        last = min(GRID, (floor(self.reach * GRID) // _STEP + 1) * _STEP)
        return [self.at(hundredths / GRID) for hundredths in range(_STEP, last + 1, _STEP)]

    def saves_above(self, confidence: float) -> tuple[int, int]:
        above = self._points[bisect_left(self.confidences, confidence) :]
        return sum(each.saved for each in above), len(above)


def threshold_above(confidence: float) -> float:
    """Return the smallest threshold that shadows a request of this confidence."""
    return _THRESHOLDS[min(bisect_right(_THRESHOLDS, confidence), GRID)]


def threshold_not_above(confidence: float) -> float:
    """Return the largest threshold that does not shadow a request of this confidence."""
    return _THRESHOLDS[bisect_right(_THRESHOLDS, confidence) - 1]


@dataclass(frozen=True, slots=True)
class ThresholdProposal:
    """A threshold with its 95 % interval."""

    threshold: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class MissingData:
    what: str
    there_are: int
    needed: int
    comparisons: int | None  # approximate further comparisons needed at the rate so far; None if there is no case yet

    @property
    def missing(self) -> int:
        return self.needed - self.there_are


ThresholdOutcome = ThresholdProposal | MissingData


def propose_threshold(curve: ThresholdCurve, rule: ThresholdGoal) -> ThresholdOutcome:
    needed = min_cases(rule.share)
    if isinstance(rule, CatchGoal):
        cases = curve.caught(rule.aim)
        if len(cases) < needed:
            more = ceil((needed - len(cases)) * curve.total / len(cases)) if cases else None
            return MissingData(AIM_LABELS[rule.aim], len(cases), needed, more)
        low, high = _quantile_interval(cases, rule.share)
        chosen = threshold_above(cases[ceil(rule.share * len(cases) - 1e-9) - 1])
        return ThresholdProposal(chosen, threshold_above(low), threshold_above(high))
    if curve.total < needed:
        return MissingData("comparisons", curve.total, needed, needed - curve.total)
    low, high = _quantile_interval(curve.confidences, rule.share)
    most = rule.share * curve.total + 1e-9
    chosen = max(threshold for threshold in _THRESHOLDS if bisect_left(curve.confidences, threshold) <= most)
    return ThresholdProposal(chosen, threshold_not_above(low), threshold_not_above(high))


def _quantile_interval(cases: Sequence[float], share: float) -> tuple[float, float]:
    low, high = quantile_ranks(share, len(cases))
    return (cases[low] if low >= 0 else 0.0), (cases[high] if high < len(cases) else 1.0)


@dataclass(frozen=True, slots=True)
class IntentTuning:
    intent: str
    curve: ThresholdCurve
    outcome: ThresholdOutcome
    now: float | None  # the threshold in force; None if unknown

    def to_json(self) -> dict[str, Any]:
        curve, outcome = self.curve, self.outcome
        return {
            "now": self.now,
            "shadows": curve.total,
            "verified": curve.judged,
            "saves": curve.saves,
            "disagreements": curve.disagreements,
            "reach": curve.reach,
            "proposed": asdict(outcome) if isinstance(outcome, ThresholdProposal) else None,
            "missing": asdict(outcome) if isinstance(outcome, MissingData) else None,
            "thresholds": [asdict(row) for row in curve.rows()],
        }


@dataclass(frozen=True, slots=True)
class ThresholdTuning:
    rule: ThresholdGoal
    intents: tuple[IntentTuning, ...]
    left_out: int  # comparisons of shadows that no threshold caused

    def to_json(self) -> dict[str, Any]:
        intents = {tuned.intent: tuned.to_json() for tuned in self.intents}
        return {"rule": str(self.rule), "left_out": self.left_out, "intents": intents}


def tune_thresholds(
    comparisons: Iterable[Comparison], rule: ThresholdGoal, now: Mapping[str, float]
) -> ThresholdTuning:
    """Propose a threshold for each intent. `now` maps intents to current thresholds."""
    points: dict[str, list[ComparisonPoint]] = {}
    left_out = 0
    for comparison in comparisons:
        point = comparison_point(comparison)
        if point is None:
            left_out += 1
        else:
            points.setdefault(comparison.intent or UNSPECIFIED_INTENT, []).append(point)
    curves = {intent: ThresholdCurve(found) for intent, found in sorted(points.items())}
    tuned = (IntentTuning(name, curve, propose_threshold(curve, rule), now.get(name)) for name, curve in curves.items())
    return ThresholdTuning(rule, tuple(tuned), left_out)


def read_comparisons(path: Path) -> Iterator[Comparison]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                text = line.decode()
            except UnicodeDecodeError:
                raise ValueError(f"{path}:{number} is not valid UTF-8") from None
            if text.strip():
                yield _parse_comparison(text, f"{path}:{number}")


def write_comparisons(comparisons: Iterable[Comparison], file: TextIO) -> Iterator[Comparison]:
    """Yield each comparison after writing it."""
    for comparison in comparisons:
        file.write(json.dumps(comparison.to_dict(), ensure_ascii=False) + "\n")
        yield comparison


def _parse_comparison(line: str, place: str) -> Comparison:
    try:
        if not line.lstrip().startswith("{"):
            raise ParseError("not a JSON object")
        return Comparison.from_wire(Parse(line, wire.Comparison()))
    except (ParseError, ValueError, OverflowError, RecursionError) as error:
        expected = "a line must be JSON of an octet.v1.Comparison, as written by --export"
        raise ValueError(f"{place}: {expected}: {error}") from None


def format_tuning(tuning: ThresholdTuning) -> Iterator[str]:
    if not tuning.intents:
        yield "nothing to tune: no request was shadowed for low confidence"
    for tuned in tuning.intents:
        yield from _format_intent(tuned, tuning.rule)
        yield ""
    if tuning.intents:
        yield LEGEND
    if tuning.left_out:
        sources = "fresh lanes, of demoted specialists and of requests that a rule routed"
        yield f"Left out: {tuning.left_out} shadows of {sources}: they need no threshold."
    yield from _format_next_steps(tuning)


def _format_intent(tuned: IntentTuning, rule: ThresholdGoal) -> Iterator[str]:
    curve, outcome = tuned.curve, tuned.outcome
    now = "" if tuned.now is None else f", current threshold {tuned.now:g}"
    yield f"{tuned.intent}: {curve.total} shadows, {curve.judged} of them verified on both sides{now}"
    rows = {row.threshold: row for row in curve.rows()}
    marked = None
    if isinstance(outcome, ThresholdProposal):
        marked = outcome.threshold
        rows[marked] = curve.at(marked)
    yield format_table(_HEADING, [_format_row(row, curve, row.threshold == marked) for _, row in sorted(rows.items())])
    if isinstance(outcome, ThresholdProposal):
        yield f"  proposed: {outcome.threshold:g} ({outcome.low:g} to {outcome.high:g}):"
        yield f"  {rule}"
    else:
        yield from _format_missing(outcome, curve)
    yield f"  the data reach confidence {curve.reach:.2f}; nothing is known about higher confidence"
    border = curve.confidences[int(_UPPERMOST * curve.total)]  # shows whether a higher threshold would catch more
    saves, total = curve.saves_above(border)
    low, high = share_interval(saves, total)
    rate = f"{saves / total:.0%} ({low:.0%} to {high:.0%})"
    yield f"  of the {total} most confident (from {border:.2f}) {rate} were saves"


def _format_row(row: ThresholdRow, curve: ThresholdCurve, is_marked: bool) -> tuple[str, ...]:
    low, high = row.saves_interval
    return (
        f"{row.threshold:.2f}{' <-' if is_marked else ''}",
        str(row.shadowed),
        f"{row.shadowed / curve.total:.0%}",
        _format_caught(row.disagreements, curve.disagreements),
        _format_caught(row.saves, curve.saves),
        f"{low:.0%} to {high:.0%}" if curve.saves else "",
        str(row.losses),
    )


def _format_caught(part: int, whole: int) -> str:
    return f"{part} of {whole}, {part / whole:.0%}" if whole else "0 of 0"


def _format_missing(missing: MissingData, curve: ThresholdCurve) -> Iterator[str]:
    yield f"  no proposal: {missing.needed} {missing.what} are needed, {missing.missing} are missing"
    if missing.comparisons is not None:
        yield f"  at the current rate that takes about {missing.comparisons} more shadows"
    most = share_interval(curve.saves, curve.judged)[1]
    if most < _NOT_WORTH:
        yield f"  only the shadow was correct in at most {most:.1%} of them: shadowing may not be worth its cost"


def _format_next_steps(tuning: ThresholdTuning) -> Iterator[str]:
    def set_knob(intent: str, threshold: float, why: str) -> str:
        return f"  octet knobs set {intent}.shadow_threshold={threshold:g} --reason '{why}'"

    outcomes = {each.intent: each.outcome for each in tuning.intents}
    proposed = {name: each.threshold for name, each in outcomes.items() if isinstance(each, ThresholdProposal)}
    if proposed:
        yield "\nTo try it now, until released:"
        for intent, threshold in proposed.items():
            yield set_knob(intent, threshold, "octet router tune")
        yield "To keep it, add to the configuration:"
        yield "  intents:"
        for intent, threshold in proposed.items():
            yield f"    {intent}:\n      shadow_threshold: {threshold:g}"
    if tuning.intents:
        yield "To explore further, shadow more confident requests for a while and tune again:"
        for tuned in tuning.intents:
            yield set_knob(tuned.intent, min(1.0, round(tuned.curve.reach + _EXPLORE, 2)), "explore")
