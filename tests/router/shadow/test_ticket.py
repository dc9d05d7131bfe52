"""Whatever happens to a ticket, and in whatever order, every byte of the answer is given back."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from octet.v1 import specialist_pb2 as wire
from router.quality.answers import ByteBudget, CapturedAnswer, ShadowAnswer, ShadowHandle
from tests.router.shadow.world import chunk, order


class Tickets(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.room = ByteBudget(1000)
        self.ends = 0
        self.heard: list[ShadowAnswer | None] = []
        self.asked = self.cancelled = self.landed = False

    @initialize(answers=st.booleans())
    def is_sent(self, answers: bool) -> None:
        self.ticket = ShadowHandle(order(), self._end)
        self.answer: ShadowAnswer | None = None
        if answers:
            kept = CapturedAnswer(self.room, 100)
            assert kept.add(chunk("x").SerializeToString())
            self.answer = ShadowAnswer(wire.Lane(), wire.Usage(), kept)

    def _end(self) -> None:
        self.ends += 1

    @precondition(lambda self: not self.landed)
    @rule()
    def lands(self) -> None:
        self.landed = True
        self.ticket.finish(self.answer)
        assert self.ticket.done
        if self.cancelled:
            assert not self.room.taken and self.heard in ([], [None]), "nobody wants it any more"

    @precondition(lambda self: not self.asked)
    @rule()
    def somebody_waits(self) -> None:
        self.asked = True
        self.ticket.when_done(self.heard.append)

    @rule()
    def is_cancelled(self) -> None:
        before = self.ends
        self.ticket.cancel()
        self.cancelled = True
        assert self.ends == before + (not self.landed)

    def teardown(self) -> None:
        if not self.landed:
            self.ticket.finish(self.answer)
        assert len(self.heard) == self.asked, "told once, and whoever asked"
        for answer in self.heard:
            if answer is not None:
                answer.captured.drop()
        if not self.asked:
            self.ticket.cancel()
        assert not self.room.taken


TestTickets: Any = Tickets.TestCase
TestTickets.settings = settings(max_examples=60, stateful_step_count=8, deadline=None)
