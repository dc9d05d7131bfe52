"""Whether a lane without history stays: what it is measured by, and when it has fallen behind."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import exp, inf, log
from typing import Literal

from admission.lane import LaneRecord
from admission.pass_rate import pass_rate
from admission.window import Counts
from octet.config.ensemble import LanesConfig

_FEWEST = 10
"""Judged answers without which no lane is rolled back by policy."""
_DOUBT = 0.001
"""What is less likely than this is not taken for bad luck."""


@dataclass(frozen=True, slots=True)
class Rules:
    promote: Literal["auto", "manual"]
    min_samples: int
    margin: float
    """How much worse than the lane that serves a candidate may be."""
    roll_back: bool
    worse: float
    """How much worse than the lane it is measured by a fresh one must be to go."""


def rules_of(config: LanesConfig) -> Rules:
    return Rules(**{field.name: getattr(config, field.name) for field in fields(Rules)})


@dataclass(frozen=True, slots=True)
class Bar:
    """The rate below which a fresh lane goes, and where it comes from."""

    rate: float
    said: str


def bar_of(measure: LaneRecord | None, counts: Mapping[int, Counts], rules: Rules, floor: float | None) -> Bar | None:
    """The floor, or what the lane it is measured by has shown, whichever is higher; None where neither says
    anything."""
    bars = [] if floor is None else [Bar(floor, f"the floor of {floor:.1%}")]
    shown = Counts() if measure is None else counts.get(measure.number, Counts())
    if shown.rate is not None and shown.total >= rules.min_samples:
        rate = shown.rate - rules.worse
        bars.append(Bar(rate, f"{rate:.1%}, which is {measure}'s {shown.rate:.1%} less {rules.worse:.1%}"))
    return max(bars, default=None, key=lambda bar: bar.rate)


def is_below(counts: Counts, bar: Bar | None) -> bool:
    return bar is not None and counts.rate is not None and counts.rate < bar.rate


def breach(counts: Counts, bar: Bar | None, rules: Rules) -> str:
    """Why a lane on trial goes; empty where it stays. With all its samples the rate itself decides; before that it must
    be beyond doubt."""
    if not rules.roll_back or bar is None or counts.total < _FEWEST:
        return ""
    if counts.total >= rules.min_samples:
        return f"{pass_rate(counts)}, below {bar.said}" if is_below(counts, bar) else ""
    return f"{pass_rate(counts)}, beyond doubt below {bar.said}" if _chance(counts, bar.rate) < _DOUBT else ""


def _chance(counts: Counts, bar: float) -> float:
    """At most as likely as this are so few of a lane whose rate is at the bar: Chernoff's bound."""
    if counts.rate is None or counts.rate >= bar:
        return 1.0
    exponent = 0.0
    for count, share in ((counts.good, bar), (counts.bad, 1 - bar)):
        if count:
            exponent += count * log(count / counts.total / share) if share > 0 else inf
    return exp(-exponent)
