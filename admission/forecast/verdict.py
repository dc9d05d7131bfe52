"""What the desk says to a request, with its arithmetic."""

from dataclasses import dataclass
from typing import Literal

from admission.forecast.promise import Promise

Deadline = Literal["first", "end"]
"""Of the first token, or of the whole answer."""
RefuseReason = Literal["deadline_unreachable", "would_delay_others", "queue_full"]


@dataclass(frozen=True, slots=True)
class Outlook:
    """Seconds from now, with the queue, the running work and the measured rates as they are."""

    wait: float
    """To the first step."""
    total: float
    """To the end of an answer as long as answers usually are."""
    slack: float | None
    """What is left then before its deadline; of two, before the one that is nearer to being missed."""


@dataclass(frozen=True, slots=True)
class Admit:
    outlook: Outlook | None
    """None while nothing has been measured or calibrated."""
    displaced: tuple[str, ...] = ()
    """Of lower priority, to be shed for this one; they are out of the books as soon as it is entered."""
    aside: tuple[str, ...] = ()
    """Of lower priority, with time to wait beside the line until they are called back."""
    promise: Promise | None = None
    """What the outlook is made of, to be compared with what comes."""


@dataclass(frozen=True, slots=True)
class Refuse:
    reason: RefuseReason
    limit: str
    arithmetic: str
    """A sentence."""
    retry_after: float | None
    """Seconds; None where nothing has been measured, or where waiting would not help."""
    deadline: Deadline = "end"
    """Which of its own cannot be reached."""


Verdict = Admit | Refuse
