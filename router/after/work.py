"""One answer that waits to be judged, and its shadow's where there is one."""

import sys

from octet.v1 import specialist_pb2 as wire
from router.after.place import Place
from router.after.reading import Bench, Reading
from router.after.rules import Rules
from router.after.sample import Answer, Finished, Pending

_ROOM = 2
"""So many times as long an answer should have been enough."""
_RECEIPT = 8192
"""Bytes, about: no receipt takes more."""


class Work:
    __slots__ = ("answer", "bench", "copy", "finished", "is_compared", "num_bytes", "primary", "rules", "shadow")

    def __init__(self, finished: Finished, shadow: Pending | None, rules: Rules) -> None:
        self.finished = finished
        self.shadow = shadow
        self.rules = rules
        self.answer: Answer | None = None
        self.bench = Bench(finished.question)
        self.primary: Reading | None = None
        self.copy: Reading | None = None
        """The shadow's answer."""
        self.is_compared = False
        """All is done that is the primary's business."""
        self.num_bytes = sys.getsizeof(finished.question) + _RECEIPT
        """Beside what is kept of the answers."""

    @property
    def place(self) -> Place:
        """Where it waits for what is to be done next."""
        whose = self._shadows_specialist if self.is_compared else self.finished.way.specialist
        verifier = self.rules.verifiers.get(whose)
        return Place("" if verifier is None else verifier.name, whose)

    @property
    def is_of_two(self) -> bool:
        """Its shadow counts for another specialist, which may be judged slowly: the primary's do not wait for that."""
        counts = self.answer is not None and self.counts_for_shadow
        return counts and self._shadows_specialist != self.finished.way.specialist

    @property
    def _shadows_specialist(self) -> str:
        return "" if self.shadow is None else self.shadow.order.way.specialist

    @property
    def worthwhile(self) -> bool:
        """Without a sample or a shadow's answer there is nothing to learn."""
        return self.finished.sample or self.answer is not None

    @property
    def counts_for_shadow(self) -> bool:
        """Whether the question was one that the shadow's specialist would have got: what it says to others' questions
        is no measure of it."""
        if self.shadow is None:
            return False
        receipt = self.finished.receipt
        return self._shadows_specialist in (receipt.specialist, receipt.decision.primary)

    @property
    def has_two_lanes(self) -> bool:
        """A lane that is compared with itself agrees."""
        return self.answer is not None and self.answer.lane != self.finished.receipt.lane

    @property
    def shadow_ran_on(self) -> bool:
        """Cut off, though it had twice the room that the primary took for the whole of its answer."""
        if self.answer is None or self.answer.usage.finish_reason != wire.FINISH_REASON_LENGTH:
            return False
        mine = self.finished.receipt.usage
        is_whole = mine.finish_reason == wire.FINISH_REASON_STOP
        return is_whole and self.answer.usage.completion_tokens >= _ROOM * max(1, mine.completion_tokens)

    def drop(self) -> None:
        self.finished.kept.drop()
        if self.answer is not None:
            self.answer.kept.drop()
