"""A shadow's handle releases every byte of the answer, in whatever order events come."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from octet.v1 import specialist_pb2 as wire
from router.quality.answers import ByteBudget, CapturedAnswer, ShadowAnswer, ShadowHandle
from tests.router.shadow.harness import chunk, order


class ShadowHandles(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.budget = ByteBudget(1000)
        self.ends = 0
        self.answers: list[ShadowAnswer | None] = []
        self.asked = self.cancelled = self.finished = False

    @initialize(has_answer=st.booleans())
    def is_sent(self, has_answer: bool) -> None:
        self.handle = ShadowHandle(order(), self._end)
        self.answer: ShadowAnswer | None = None
        if has_answer:
            captured = CapturedAnswer(self.budget, 100)
            assert captured.add(chunk("x").SerializeToString())
            self.answer = ShadowAnswer(wire.Lane(), wire.Usage(), captured)

    def _end(self, _: str) -> None:
        self.ends += 1

    @precondition(lambda self: not self.finished)
    @rule()
    def finishes(self) -> None:
        self.finished = True
        self.handle.finish(self.answer)
        assert self.handle.done
        if self.cancelled:
            assert not self.budget.taken and self.answers in ([], [None]), "a cancelled shadow must keep no bytes"

    @precondition(lambda self: not self.asked)
    @rule()
    def waits(self) -> None:
        self.asked = True
        self.handle.when_done(self.answers.append)

    @rule()
    def is_cancelled(self) -> None:
        before = self.ends
        self.handle.cancel()
        self.cancelled = True
        assert self.ends == before + (not self.finished)

    def teardown(self) -> None:
        if not self.finished:
            self.handle.finish(self.answer)
        assert len(self.answers) == self.asked, "every callback must be called once"
        for answer in self.answers:
            if answer is not None:
                answer.captured.drop()
        if not self.asked:
            self.handle.cancel()
        assert not self.budget.taken


TestShadowHandles: Any = ShadowHandles.TestCase
TestShadowHandles.settings = settings(max_examples=60, stateful_step_count=8, deadline=None)
