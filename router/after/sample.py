"""Answers that are worth a second look."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from octet.v1 import inference_pb2 as wire
from octet.v1 import operator_pb2 as operator
from router.after.kept import Kept
from router.between.shadowing import ShadowOrder
from router.between.way import Way
from router.verify.verdict import Outcome


@dataclass(frozen=True, slots=True)
class Finished:
    """What a caller was answered."""

    receipt: wire.Receipt
    question: str
    kept: Kept
    way: Way
    """The one that led to the answer."""
    sample: bool
    """Whether it counts for its lane."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a shadow answered."""

    lane: wire.Lane
    usage: wire.Usage
    kept: Kept


class Pending(Protocol):
    """A shadow that may be under way still."""

    @property
    def order(self) -> ShadowOrder: ...

    def when_done(self, tell: Callable[[Answer | None], None]) -> None:
        """At once, if it is; None where no answer came of it. The answer is the hearer's to drop."""
        ...

    def cancel(self) -> None:
        """Nobody wants it any more, also if it is done."""
        ...


class Outcomes(Protocol):
    """Hears what came of it, on the event loop, and is quick about it."""

    def judged(self, lane_id: str, specialist: str, outcome: Outcome) -> None:
        """Passed or failed: nothing else is told."""
        ...

    def looked_at(self, receipt: wire.Receipt, outcome: Outcome) -> None:
        """The same of the answer that a caller was given, where it counted for its lane."""
        ...

    def compared(self, comparison: operator.Comparison, tenant: str) -> None:
        """`tenant` whose request it was."""
        ...
