"""How often replicas are asked to report: less often the more there are, so that hearing them never takes a core."""

from dataclasses import dataclass
from itertools import takewhile

from octet.config.ensemble import DispatchConfig

LEAST_SECONDS = 0.05
"""Between two reports of a replica whose load changes all the time."""
REPORTS_A_SECOND = 1000
"""Of all replicas together, about: some hundredths of a core."""
_PARTS = 2
"""Of the time for which a report counts: so many come in it at least, however many replicas there are."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds, of one replica."""

    interval: float
    """Between two reports, at least."""
    heartbeat: float
    """Between two reports, at most."""


def pace_of(num_replicas: int, dispatch: DispatchConfig) -> Pace:
    """Intervals double, so that a fleet that grows by one replica is seldom watched anew."""
    longest = min(dispatch.stale_seconds, dispatch.hang_seconds) / _PARTS
    enough = num_replicas / REPORTS_A_SECOND
    steps = [LEAST_SECONDS * 2**step for step in range(16)]
    shorter = list(takewhile(lambda step: step <= longest and step < 2 * enough, steps))
    interval = shorter[-1] if shorter else LEAST_SECONDS
    return Pace(interval, max(dispatch.heartbeat_seconds, interval))


def kept_pace(before: Pace, num_replicas: int, dispatch: DispatchConfig) -> Pace:
    """The one before while it does for so many, or for twice as many: a fleet that breathes keeps its pace."""
    paces = [pace_of(count, dispatch) for count in (num_replicas, 2 * num_replicas)]
    return before if before in paces else paces[0]
