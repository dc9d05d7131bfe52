"""For a shadow that was sent."""

from collections.abc import Callable

from router.after.sample import Answer
from router.between.shadowing import ShadowOrder

Tell = Callable[[Answer | None], None]


class Ticket:
    __slots__ = ("_answer", "_end", "_tell", "_unwanted", "done", "order")

    def __init__(self, order: ShadowOrder, end: Callable[[], object]) -> None:
        """`end` ends the shadow, wherever it is."""
        self.order = order
        self.done = False
        self._end = end
        self._unwanted = False
        self._answer: Answer | None = None
        self._tell: Tell | None = None

    def when_done(self, tell: Tell) -> None:
        """One hears of it, once. The answer is the hearer's to drop."""
        if self.done:
            answer, self._answer = self._answer, None
            tell(answer)
        else:
            self._tell = tell

    def cancel(self) -> None:
        """Nobody wants it any more, also if it is done."""
        self._unwanted = True
        if self.done:
            self._forget(self._answer)
        else:
            self._end()

    def land(self, answer: Answer | None) -> None:
        """It is over; None where no answer came of it."""
        self.done = True
        if self._unwanted:
            self._forget(answer)
            answer = None
        tell, self._tell = self._tell, None
        if tell is None:
            self._answer = answer
        else:
            tell(answer)

    def _forget(self, answer: Answer | None) -> None:
        self._answer = None
        if answer is not None:
            answer.kept.drop()
