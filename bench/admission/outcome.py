"""What became of one offer."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from bench.admission.offer import Offer

End = Literal["in time", "late", "given up", "shed", "refused", "cancelled", "failed"]
"""Whoever is shed was let in and had to go when a higher priority came. Whoever is given up was ended between steps:
it could not be in time any more, or somebody higher could not be otherwise."""
ENDS: tuple[End, ...] = get_args(End)
MISSED: frozenset[End] = frozenset({"late", "given up"})
"""Ends of those who were let in and did not get their answer in time, though no newcomer took their place."""


@dataclass(frozen=True, slots=True)
class Outcome:
    offer: Offer
    end: End
    at: float
    """When it was known."""
    reason: str = ""
    """Of a refusal."""
    told: float | None = None
    """Seconds after which to try again, where the refusal says so."""
    latency: float | None = None
    """Seconds from asking to the refusal, where that is measured."""
    cpu: float | None = field(default=None, compare=False)
    """Seconds of the processor that the refusal took, where that is measured: not the same in every run."""
    asked: float | None = field(default=None, compare=False)
    """When its caller did, in seconds of the monotonic clock, where that is measured."""
    behind: float | None = None
    """Seconds that the caller itself was late to ask, where that is measured."""
    beside_lower: bool | None = None
    """Whether somebody of a lower priority held a seat at that moment; None where that was not seen."""
