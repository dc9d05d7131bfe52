"""A replica at the router: the depth of its queue, hangs and probes, and restarts of its process."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octet.clock import ManualClock
from octet.rpc.refusal import replica_failed
from octet.v1 import specialist_pb2 as wire
from router.dispatch.attempts import AttemptFailure, ReplicaAttempt
from router.dispatch.replicas.replica import RESTART_KINDS, UNKNOWN_REASON, Replica
from tests.router.replicas.builders import replica, report

STALE = 1.0


def usable(replica: Replica) -> bool:
    return replica.is_usable


def allows(replica: Replica) -> bool:
    return replica.breaker.would_allow


class DepthMachine(RuleBasedStateMachine):
    """Requests begin and end in any order while reports arrive late or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.replica = replica(self.clock)
        self.in_flight: list[int] = []
        self.reported: float | None = None
        self.content = 0

    @rule()
    def a_request_is_sent(self) -> None:
        self.in_flight.append(self.replica.enter())

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def one_ends(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.in_flight) - 1))
        self.replica.leave(self.in_flight.pop(index))

    @rule(waiting=st.integers(0, 9), running=st.integers(0, 9))
    def a_report_comes(self, waiting: int, running: int) -> None:
        self.replica.load_reported(report(waiting=waiting, running=running))
        self.reported, self.content = self.clock.now(), waiting + running

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
        assert depth >= self.replica.inflight == len(self.in_flight)
        fresh = self.reported is not None and self.clock.now() - self.reported <= STALE
        if not fresh:
            assert depth == len(self.in_flight)
        else:
            assert self.content <= depth <= self.content + len(self.in_flight)

    def teardown(self) -> None:
        for entered in self.in_flight:
            self.replica.leave(entered)
        self.replica.load_reported(report())
        assert self.replica.snapshot(STALE).depth == 0


TestCounting = DepthMachine.TestCase


def test_a_draining_or_unready_replica_is_closed_and_a_hung_one_is_broken() -> None:
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


def test_a_replica_that_hung_gets_a_single_probe_first() -> None:
    each = hung_and_back(ManualClock())
    with ReplicaAttempt(each) as probe:
        assert not allows(each)
        each.load_reported(report())
        assert each.snapshot(STALE).is_broken
        probe.start()
    assert allows(each) and each.breaker.state == "closed"


def test_a_replica_lost_while_hung_gets_a_single_probe_first() -> None:
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
    assert each.breaker.state == "closed", "a restarted replica must be trusted"


def test_idle_replica_that_hung_recovers_by_its_reports() -> None:
    clock = ManualClock()
    each = hung_and_back(clock)
    clock.sleep(1.9)
    each.load_reported(report())
    assert each.breaker.state == "half_open"
    clock.sleep(0.1)
    each.load_reported(report())
    assert str(each.breaker.state) == "closed"


def test_a_replica_whose_probe_failed_does_not_recover_by_reports() -> None:
    clock = ManualClock()
    each = hung_and_back(clock)
    with ReplicaAttempt(each) as probe:
        probe.report_outcome(AttemptFailure("failed", replica_failed()))
    each.load_reported(report())
    clock.sleep(60.0)
    each.load_reported(report())
    assert each.breaker.state == "half_open"


def test_a_probe_without_an_outcome_is_followed_by_another() -> None:
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
        assert not allows(each), "only the probe itself may free its slot"


@given(st.lists(st.sampled_from(["report", "drain", "lose", "die", "drain and die", "die supervised"]), max_size=12))
def test_a_restart_is_another_process_at_the_address(events: list[str]) -> None:
    """Lost connections to the same process are no restarts. The reason is the supervisor's, or what was seen."""
    target, number, num_restarts, draining = replica(), 1, 0, False
    end: wire.ProcessEnd | None = None
    target.health_reported(True)
    target.load_reported(report(instance="process-1"))
    for event in events:
        if "drain" in event:
            draining = True
            target.load_reported(report(instance=f"process-{number}", previous_end=end, draining=True))
        if event != "report" and event != "drain":
            target.disconnected(event)
            target.health_reported(True)
        if "die" in event:
            expected = "drained" if draining else "unknown"
            number, num_restarts, draining, end = number + 1, num_restarts + 1, False, None
            if "supervised" in event:
                expected, end = "exited", wire.ProcessEnd(kind="exited", text="exit code 1: \x1b[31mno model")
        target.load_reported(report(instance=f"process-{number}", previous_end=end, draining=draining))
        assert (target.restart is None) == (num_restarts == 0)
        if target.restart is not None:
            assert target.restart.instance == f"process-{number}" and target.restart.kind in RESTART_KINDS
            assert target.restart.reason.isprintable()
        if "die" in event:
            assert target.restart is not None and target.restart.kind == expected


def test_router_that_starts_later_learns_of_the_restart_from_the_supervisor() -> None:
    target = replica()
    target.health_reported(True)
    target.load_reported(report(instance="second", previous_end=wire.ProcessEnd(kind="made up", text="x")))
    assert target.restart is not None and target.restart.kind == "unknown" and target.restart.reason == UNKNOWN_REASON


def test_only_a_restart_that_the_router_saw_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    target, end = replica(), wire.ProcessEnd(kind="killed", text="killed by SIGKILL", number=2)
    target.health_reported(True)
    target.load_reported(report(instance="second", previous_end=end))
    assert target.restart is not None and not caplog.messages, "it may be older than the router"
    assert target.restart.number == 2
    target.load_reported(report(instance="third", previous_end=end))
    assert caplog.messages == [f"{target.name} restarted: killed by SIGKILL"]
