"""A tuning for people: what every threshold costs and catches, what is proposed and why, and what nobody knows."""

from collections.abc import Iterator

from octet.operate.table import table
from router.tuning.curve import Curve, Row
from router.tuning.interval import share_interval
from router.tuning.propose import Missing, Proposed
from router.tuning.tune import Tuned, Tuning

_HEADING = ("threshold", "shadows", "of today's", "disagreements caught", "saves caught", "95 %", "losses")
_UPPERMOST = 0.8
"""Of the requests, by confidence: what lies beyond is looked at by itself."""
_EXPLORE = 0.1
_NOT_WORTH = 0.01
LEGEND = """\
Counted are only requests that were shadowed for low confidence: what was surer than the threshold of its time is not
among them. A save: only the shadow's answer passed its verifier; a loss: only the primary's. Of today's: the share of
the shadows that there were."""


def as_text(tuning: Tuning) -> str:
    return "\n".join(_lines(tuning))


def _lines(tuning: Tuning) -> Iterator[str]:
    if not tuning.intents:
        yield "nothing to tune: no request has been shadowed for low confidence"
    for tuned in tuning.intents:
        yield from _intent(tuned, tuning)
        yield ""
    if tuning.intents:
        yield LEGEND
    if tuning.left_out:
        yield f"Left out: {tuning.left_out} shadows of fresh lanes and demoted specialists, which no threshold ordered."
    yield from _to_do(tuning)


def _intent(tuned: Tuned, tuning: Tuning) -> Iterator[str]:
    curve = tuned.curve
    now = "" if tuned.now is None else f", its threshold is {tuned.now:g}"
    yield f"{tuned.intent}: {curve.total} shadows, {curve.judged} of them verified on both sides{now}"
    rows = curve.rows()
    if isinstance(tuned.outcome, Proposed):
        rows = sorted({row.threshold: row for row in (*rows, curve.at(tuned.outcome.threshold))}.values(), key=_by)
    yield table(_HEADING, [_row(row, curve, tuned.outcome) for row in rows])
    if isinstance(tuned.outcome, Proposed):
        yield f"  proposed: {tuned.outcome.threshold:g} ({tuned.outcome.low:g} to {tuned.outcome.high:g}), as this is"
        yield f"  {tuning.rule}"
    else:
        yield from _missing(tuned.outcome, curve)
    yield f"  the data reach confidence {curve.reach:.2f}; of surer requests nothing is known"
    yield f"  {_uppermost(curve)}"


def _by(row: Row) -> float:
    return row.threshold


def _row(row: Row, curve: Curve, outcome: Proposed | Missing) -> tuple[str, ...]:
    mark = " <-" if isinstance(outcome, Proposed) and outcome.threshold == row.threshold else ""
    low, high = row.saves_interval
    return (
        f"{row.threshold:.2f}{mark}",
        str(row.shadowed),
        f"{row.shadowed / curve.total:.0%}",
        _caught(row.disagreements, curve.disagreements),
        _caught(row.saves, curve.saves),
        f"{low:.0%} to {high:.0%}" if curve.saves else "",
        str(row.losses),
    )


def _caught(part: int, whole: int) -> str:
    return f"{part} of {whole}, {part / whole:.0%}" if whole else "0 of 0"


def _missing(missing: Missing, curve: Curve) -> Iterator[str]:
    yield f"  no proposal: {missing.needed} {missing.what} are needed, {missing.missing} are missing"
    if missing.comparisons is not None:
        yield f"  at the rate so far that takes about {missing.comparisons} more shadows"
    most = share_interval(curve.saves, curve.judged)[1]
    if most < _NOT_WORTH:
        yield f"  only the shadow was right in at most {most:.1%} of them: a second opinion may not be worth its price"


def _uppermost(curve: Curve) -> str:
    """Whether a higher threshold would catch more, as far as that can be seen from below."""
    border = curve.confidences[int(_UPPERMOST * curve.total)]
    saves, total = curve.saves_above(border)
    low, high = share_interval(saves, total)
    rate = f"{saves / total:.0%} ({low:.0%} to {high:.0%})"
    return f"of the {total} surest (from {border:.2f} on) {rate} were saves"


def _to_do(tuning: Tuning) -> Iterator[str]:
    proposed = [(each, each.outcome) for each in tuning.intents if isinstance(each.outcome, Proposed)]
    if proposed:
        yield "\nTo try it at once, until it is released:"
        for tuned, outcome in proposed:
            yield _knob(tuned, outcome.threshold, "octet router tune")
        yield "To keep it, in the configuration:"
        yield "  intents:"
        for tuned, outcome in proposed:
            yield f"    {tuned.intent}:\n      shadow_threshold: {outcome.threshold:g}"
    if tuning.intents:
        yield "To see further, shadow surer requests for a while, and tune again:"
        for tuned in tuning.intents:
            further = min(1.0, round(tuned.curve.reach + _EXPLORE, 2))
            yield _knob(tuned, further, "to see further")


def _knob(tuned: Tuned, threshold: float, why: str) -> str:
    return f"  octet knobs set {tuned.intent}.shadow_threshold={threshold:g} --reason '{why}'"
