"""What the router counts is never below what it has sent, and is nothing when everything is over."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octet.clock import ManualClock
from octet.rpc.refusal import replica_failed
from router.dispatch.attempts import AttemptFailure, ReplicaAttempt
from router.dispatch.replicas.replica import Replica
from tests.router.replicas.builders import replica, report

STALE = 1.0


def usable(replica: Replica) -> bool:
    return replica.is_usable


def allows(replica: Replica) -> bool:
    return replica.breaker.would_allow


class Counting(RuleBasedStateMachine):
    """Requests come and go in any order while reports come in, late or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.replica = replica(self.clock)
        self.under_way: list[int] = []
        self.reported: float | None = None
        self.said = 0

    @rule()
    def a_request_is_sent(self) -> None:
        self.under_way.append(self.replica.enter())

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def one_ends(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.under_way) - 1))
        self.replica.leave(self.under_way.pop(index))

    @rule(waiting=st.integers(0, 9), running=st.integers(0, 9))
    def a_report_comes(self, waiting: int, running: int) -> None:
        self.replica.load_reported(report(waiting=waiting, running=running))
        self.reported, self.said = self.clock.now(), waiting + running

    @rule(seconds=st.floats(0, 2))
    def time_passes(self, seconds: float) -> None:
        self.clock.sleep(seconds)

    @rule()
    def the_connection_is_lost_and_found(self) -> None:
        self.replica.disconnected("gone")
        assert (self.replica.snapshot(STALE).is_broken, usable(self.replica)) == (True, False)
        self.replica.health_reported(is_serving=True)
        assert usable(self.replica)
        self.reported = None

    @invariant()
    def depth_is_what_is_known(self) -> None:
        depth = self.replica.snapshot(STALE).depth
        assert depth >= self.replica.inflight == len(self.under_way)
        fresh = self.reported is not None and self.clock.now() - self.reported <= STALE
        if not fresh:
            assert depth == len(self.under_way)
        else:
            assert self.said <= depth <= self.said + len(self.under_way)

    def teardown(self) -> None:
        for entered in self.under_way:
            self.replica.leave(entered)
        self.replica.load_reported(report())
        assert self.replica.snapshot(STALE).depth == 0


TestCounting = Counting.TestCase


def test_a_replica_that_drains_or_is_cold_is_closed_and_one_that_hangs_is_broken() -> None:
    clock = ManualClock()
    each = replica(clock)
    each.load_reported(report(draining=True))
    assert (each.snapshot(STALE).is_closed, usable(each)) == (True, False)
    each.load_reported(report())
    assert usable(each)
    each.health_reported(is_serving=False)
    assert each.snapshot(STALE).is_closed
    each.health_reported(is_serving=True)
    each.mark_hung(1.5)
    assert (each.snapshot(STALE).is_broken, str(each.breaker.state)) == (True, "open")
    each.load_reported(report())
    assert usable(each) and str(each.breaker.state) == "half_open"


def hung_and_back(clock: ManualClock) -> Replica:
    each = replica(clock)
    each.mark_hung(1.5)
    each.load_reported(report())
    return each


def test_one_that_hung_is_asked_once_before_it_is_asked_as_often_as_others() -> None:
    each = hung_and_back(ManualClock())
    with ReplicaAttempt(each) as probe:
        assert not allows(each)
        each.load_reported(report())
        assert each.snapshot(STALE).is_broken
        probe.start()
    assert allows(each) and each.breaker.state == "closed"


def test_one_that_hung_until_its_connection_was_lost_is_asked_once_as_well() -> None:
    each = replica(ManualClock())
    each.mark_hung(1.5)
    for _ in range(2):
        each.disconnected("its keepalive ran out")
    each.health_reported(is_serving=True)
    assert usable(each) and str(each.breaker.state) == "half_open"
    with ReplicaAttempt(each) as probe:
        assert not allows(each)
        probe.start()
    each.disconnected("gone")
    each.health_reported(is_serving=True)
    assert each.breaker.state == "closed", "one that was only restarted is trusted"


def test_idle_replica_that_hung_recovers_by_its_reports() -> None:
    clock = ManualClock()
    each = hung_and_back(clock)
    clock.sleep(1.9)
    each.load_reported(report())
    assert each.breaker.state == "half_open"
    clock.sleep(0.1)
    each.load_reported(report())
    assert str(each.breaker.state) == "closed"


def test_one_whose_probe_failed_is_not_taken_at_its_word() -> None:
    clock = ManualClock()
    each = hung_and_back(clock)
    with ReplicaAttempt(each) as probe:
        probe.report_outcome(AttemptFailure("failed", replica_failed()))
    each.load_reported(report())
    clock.sleep(60.0)
    each.load_reported(report())
    assert each.breaker.state == "half_open"


def test_a_probe_that_shows_nothing_lets_the_next_one_through_at_once() -> None:
    clock = ManualClock()
    each = replica(clock)
    each.breaker.trip()
    clock.sleep(1.0)
    with ReplicaAttempt(each) as probe:
        assert not allows(each)
    probe.report_no_outcome()
    assert allows(each)
    with ReplicaAttempt(each), ReplicaAttempt(each) as intruder:
        intruder.report_no_outcome()
        assert not allows(each), "only the probe itself can say so"
