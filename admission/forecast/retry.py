"""When somebody who was refused would be let in."""

from math import ceil

from admission.forecast.entry import Entry
from admission.forecast.trial import Check, Trial

MOST_SECONDS = 30.0
_SPREAD = 0.25
"""Those who were refused together come back spread over so much more than the time itself."""
_LEAST_SECONDS = 0.05


def seconds_to_return(entry: Entry, trial: Trial, check: Check) -> float | None:
    """Until what is wrong has passed, as far as one can tell; None where it never would.

    Who would make others late waits until the last of them has ended. Who would be late itself waits until as large a
    part of the others has gone as it is late by, of what they hold it up by. To walk the known work for later moments
    instead takes longer than all the rest of a verdict (docs/benchmarks.md).
    """
    spare = trial.slack_alone(entry)
    if spare < 0:
        return None
    if check.own_late > 0:
        seconds = _until(_part(check.own_late, spare, trial), trial, in_line=check.wait >= check.own_late)
    else:
        seconds = trial.seconds_to_the_end([hurt.entry for hurt in check.hurt])
    return min(max(seconds, _LEAST_SECONDS), MOST_SECONDS)


def _until(part: float, trial: Trial, *, in_line: bool) -> float:
    """Seconds until such a part of the others has gone: of their work, which goes all the time, for one that waits in
    line; of themselves for one that has a seat and shares its steps with them as long as they are there."""
    ends = sorted(trial.ends())
    if not ends:
        return 0.0
    return part * ends[-1] if in_line else ends[max(0, ceil(part * len(ends)) - 1)]


def _part(late: float, spare: float, trial: Trial) -> float:
    """Of the way until all have gone. `spare` is what it has alone: the others hold it up by that and what it is late
    by, margins and all; the grace goes only with the last of them."""
    held_up = late + spare - trial.grace
    return min(1.0, (1 + trial.margin) * late / held_up) if held_up > 0 else 1.0


def jittered(seconds: float | None, draw: float) -> float | None:
    """`draw` is from [0, 1)."""
    return None if seconds is None else min(seconds, MOST_SECONDS / (1 + _SPREAD)) * (1 + _SPREAD * draw)
