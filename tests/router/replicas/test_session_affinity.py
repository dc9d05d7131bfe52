"""The last replica of a conversation is remembered for a limited time, for a limited number of conversations."""

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octet.clock import ManualClock
from router.dispatch.replicas.selection import SessionAffinity

MOST, SECONDS = 3, 10.0
SESSIONS = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
STACKS = st.sampled_from([(), ("x",), ("y",), ("x", "y"), ("xy",)])


class AffinityMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.affinity = SessionAffinity(self.clock, MOST, SECONDS)
        self.plain: OrderedDict[tuple[bytes, tuple[str, ...]], tuple[str, float]] = OrderedDict()

    @rule(session=SESSIONS, stack=STACKS, replica=st.sampled_from(["r0", "r1"]))
    def learn(self, session: bytes, stack: tuple[str, ...], replica: str) -> None:
        self.affinity.learn(session, stack, replica)
        self.plain.pop((session, stack), None)
        self.plain[session, stack] = (replica, self.clock.now())
        while len(self.plain) > MOST:
            self.plain.popitem(last=False)

    @rule(session=SESSIONS, stack=STACKS)
    def find(self, session: bytes, stack: tuple[str, ...]) -> None:
        name, at = self.plain.get((session, stack), (None, 0.0))
        young = self.clock.now() - at <= SECONDS
        assert self.affinity.find(session, stack) == (name if young else None)

    @precondition(lambda self: self.clock.now() < 1000)
    @rule(seconds=st.sampled_from([0.0, 1.0, 6.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.clock.sleep(seconds)

    @invariant()
    def bounded(self) -> None:
        assert len(self.affinity._replicas) <= MOST


TestAgainstAPlainList = AffinityMachine.TestCase


@given(STACKS)
def test_request_without_a_session_has_no_affinity(stack: tuple[str, ...]) -> None:
    affinity = SessionAffinity(ManualClock())
    affinity.learn(b"", stack, "r0")
    assert len(affinity._replicas) == 0 and affinity.find(b"", stack) is None


def test_affinity_without_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        SessionAffinity(ManualClock(), max_sessions=0)
