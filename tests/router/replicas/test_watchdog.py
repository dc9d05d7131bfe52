"""The watchdog finds only replicas that really hang, and ends requests past their deadline or with a stalled caller."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from octet.clock import ManualClock
from octet.config.ensemble import DispatchConfig
from octet.v1 import error_pb2
from router.dispatch.attempts import DEADLINE_SLACK, ReplicaAttempt
from router.dispatch.live_requests import LiveRequests
from router.dispatch.replicas.fleet import WATCH_INTERVAL, Watchdog
from router.dispatch.replicas.replica import Replica
from tests.router.replicas.builders import FakeCall, replica, report
from tests.router.routing.sample_requests import validated_request
from tests.specialist.server.harness import run


class WatchdogHarness:
    """A request at a replica, and a watchdog."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.replica: Replica = replica(self.clock)
        self.replica.num_watches = 1
        self.requests = LiveRequests(4, 1 << 20)
        self.live = replace(validated_request(), deadline=1e6, num_bytes=1)
        self.requests.enter(self.live)
        self.attempt = ReplicaAttempt(self.replica)
        self.attempt.call = FakeCall()
        self.attempts = {self.attempt: self.live}
        self.watchdog = Watchdog(self.clock, lambda: DispatchConfig(hang_seconds=1.5, stall_seconds=10.0))

    def pass_by(self, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        for _ in range(round(seconds / WATCH_INTERVAL)):
            self.clock.sleep(WATCH_INTERVAL)
            meanwhile()
            self.watchdog.check(self.requests, self.attempts, [self.replica])

    def ended_by(self) -> int | None:
        return None if self.live.ending is None else self.live.ending.error.reason

    def is_lost(self) -> bool:
        return self.attempt.abandoned is not None

    def hangs(self) -> bool:
        return self.replica.is_hung

    def report(self) -> None:
        self.replica.load_reported(report())

    def token(self) -> None:
        self.attempt.num_messages += 1
        self.attempt.has_started = self.live.has_first_token = True


def run_scenario(scenario: Callable[[WatchdogHarness], None]) -> None:
    """Run the scenario in a task that the watchdog may cancel."""

    async def on_a_loop() -> None:
        scenario(WatchdogHarness())

    async def watched() -> None:
        task = asyncio.create_task(on_a_loop())
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()

    run(watched())


def test_request_ends_without_a_first_token_by_its_deadline() -> None:
    def scenario(harness: WatchdogHarness) -> None:
        harness.live.first_deadline = 1.0
        harness.pass_by(1.0 + DEADLINE_SLACK - WATCH_INTERVAL, harness.report)
        assert harness.ended_by() is None
        harness.pass_by(2 * WATCH_INTERVAL, harness.report)
        assert harness.ended_by() == error_pb2.ERROR_REASON_DEADLINE
        assert harness.live.ending is not None and harness.live.ending.error.field == "first_token_timeout_ms"

    run_scenario(scenario)


def test_request_with_a_first_token_continues() -> None:
    def scenario(harness: WatchdogHarness) -> None:
        harness.live.first_deadline = 1.0
        harness.token()
        harness.pass_by(3.0, harness.report)
        assert harness.ended_by() is None

    run_scenario(scenario)


def test_silence_is_a_hang_within_two_seconds_and_not_before() -> None:
    def scenario(harness: WatchdogHarness) -> None:
        harness.pass_by(1.3)
        assert not harness.hangs() and not harness.is_lost()
        harness.pass_by(0.6)
        assert harness.hangs() and harness.is_lost() and harness.attempt.call.cancelled

    run_scenario(scenario)


def test_a_report_or_a_token_ends_the_silence() -> None:
    def scenario(harness: WatchdogHarness) -> None:
        harness.pass_by(8, harness.report)
        harness.pass_by(8, harness.token)
        assert not harness.hangs() and not harness.is_lost()
        harness.pass_by(11, harness.report)
        assert not harness.hangs()
        assert harness.is_lost(), "the replica still reports, but sends no token"

    run_scenario(scenario)


def test_request_waits_for_its_first_token_while_its_replica_reports() -> None:
    def scenario(harness: WatchdogHarness) -> None:
        harness.attempt.num_messages = 1
        harness.pass_by(100, harness.report)
        assert not harness.hangs() and not harness.is_lost() and harness.ended_by() is None
        harness.pass_by(2)
        assert harness.hangs() and harness.is_lost()

    run_scenario(scenario)


def test_silence_counts_only_while_a_connected_replica_is_watched() -> None:
    def scenario(harness: WatchdogHarness) -> None:
        harness.replica.is_connected = False
        harness.pass_by(8)
        assert not harness.hangs()
        harness.replica.health_reported(is_serving=True)
        harness.pass_by(1.3)
        assert not harness.hangs()
        harness.pass_by(0.6)
        assert harness.hangs()

    run_scenario(scenario)


def test_replica_without_a_load_stream_is_not_missed() -> None:
    def scenario(harness: WatchdogHarness) -> None:
        harness.replica.num_watches = 0
        harness.pass_by(8)
        assert not harness.hangs() and not harness.is_lost()

    run_scenario(scenario)


def test_router_that_was_stopped_blames_no_replica() -> None:
    def scenario(harness: WatchdogHarness) -> None:
        harness.pass_by(0.5, harness.report)
        harness.clock.sleep(60)
        harness.watchdog.check(harness.requests, harness.attempts, [harness.replica])
        assert not harness.hangs() and not harness.is_lost()

    run_scenario(scenario)


def test_a_stalled_caller_is_ended_without_blame_for_its_replica() -> None:
    def scenario(harness: WatchdogHarness) -> None:
        harness.attempt.is_writing = True
        harness.pass_by(9, harness.report)
        assert harness.ended_by() is None
        harness.pass_by(2, harness.report)
        assert harness.ended_by() == error_pb2.ERROR_REASON_CALLER_STALLED
        assert not harness.is_lost()

    run_scenario(scenario)


def test_a_deadline_is_enforced_whatever_the_replica_does() -> None:
    def scenario(harness: WatchdogHarness) -> None:
        harness.live.deadline = harness.clock.now() + 1.0
        harness.pass_by(1.0 + DEADLINE_SLACK - WATCH_INTERVAL, harness.token)
        assert harness.ended_by() is None
        harness.pass_by(0.3, harness.token)
        assert harness.ended_by() == error_pb2.ERROR_REASON_DEADLINE

    run_scenario(scenario)
