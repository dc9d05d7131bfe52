"""Who hangs is found by the sweep, and only who hangs."""

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
from tests.router.routing.asking import received
from tests.specialist.server.harness import run


class Scene:
    """One request at one replica, and a sweep over it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.replica: Replica = replica(self.clock)
        self.replica.num_watches = 1
        self.requests = LiveRequests(4, 1 << 20)
        self.live = replace(received(), deadline=1e6, num_bytes=1)
        self.requests.enter(self.live)
        self.attempt = ReplicaAttempt(self.replica)
        self.attempt.call = FakeCall()
        self.attempts = {self.attempt: self.live}
        self.sweep = Watchdog(self.clock, lambda: DispatchConfig(hang_seconds=1.5, stall_seconds=10.0))

    def pass_by(self, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        for _ in range(round(seconds / WATCH_INTERVAL)):
            self.clock.sleep(WATCH_INTERVAL)
            meanwhile()
            self.sweep.check(self.requests, self.attempts, [self.replica])

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


def scene(story: Callable[[Scene], None]) -> None:
    """In a task that may be ended."""

    async def on_a_loop() -> None:
        story(Scene())

    async def watched() -> None:
        task = asyncio.create_task(on_a_loop())
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()

    run(watched())


def test_request_ends_without_a_first_token_by_its_deadline() -> None:
    def story(scene: Scene) -> None:
        scene.live.first_deadline = 1.0
        scene.pass_by(1.0 + DEADLINE_SLACK - WATCH_INTERVAL, scene.report)
        assert scene.ended_by() is None
        scene.pass_by(2 * WATCH_INTERVAL, scene.report)
        assert scene.ended_by() == error_pb2.ERROR_REASON_DEADLINE
        assert scene.live.ending is not None and scene.live.ending.error.field == "first_token_timeout_ms"

    scene(story)


def test_request_with_a_first_token_continues() -> None:
    def story(scene: Scene) -> None:
        scene.live.first_deadline = 1.0
        scene.token()
        scene.pass_by(3.0, scene.report)
        assert scene.ended_by() is None

    scene(story)


def test_silence_is_a_hang_within_two_seconds_and_not_before() -> None:
    def story(scene: Scene) -> None:
        scene.pass_by(1.3)
        assert not scene.hangs() and not scene.is_lost()
        scene.pass_by(0.6)
        assert scene.hangs() and scene.is_lost() and scene.attempt.call.cancelled

    scene(story)


def test_a_report_or_a_token_is_a_sign_of_life() -> None:
    def story(scene: Scene) -> None:
        scene.pass_by(8, scene.report)
        scene.pass_by(8, scene.token)
        assert not scene.hangs() and not scene.is_lost()
        scene.pass_by(11, scene.report)
        assert not scene.hangs()
        assert scene.is_lost(), "it lives, and sends no token"

    scene(story)


def test_request_waits_for_its_first_token_while_its_replica_reports() -> None:
    def story(scene: Scene) -> None:
        scene.attempt.num_messages = 1
        scene.pass_by(100, scene.report)
        assert not scene.hangs() and not scene.is_lost() and scene.ended_by() is None
        scene.pass_by(2)
        assert scene.hangs() and scene.is_lost()

    scene(story)


def test_silence_counts_from_when_reports_are_asked_for_and_the_replica_is_there() -> None:
    def story(scene: Scene) -> None:
        scene.replica.is_connected = False
        scene.pass_by(8)
        assert not scene.hangs()
        scene.replica.health_reported(is_serving=True)
        scene.pass_by(1.3)
        assert not scene.hangs()
        scene.pass_by(0.6)
        assert scene.hangs()

    scene(story)


def test_replica_without_a_load_stream_is_not_missed() -> None:
    def story(scene: Scene) -> None:
        scene.replica.num_watches = 0
        scene.pass_by(8)
        assert not scene.hangs() and not scene.is_lost()

    scene(story)


def test_router_that_was_stopped_blames_no_replica() -> None:
    def story(scene: Scene) -> None:
        scene.pass_by(0.5, scene.report)
        scene.clock.sleep(60)
        scene.sweep.check(scene.requests, scene.attempts, [scene.replica])
        assert not scene.hangs() and not scene.is_lost()

    scene(story)


def test_a_caller_that_does_not_take_is_ended_and_its_replica_is_not_blamed() -> None:
    def story(scene: Scene) -> None:
        scene.attempt.is_writing = True
        scene.pass_by(9, scene.report)
        assert scene.ended_by() is None
        scene.pass_by(2, scene.report)
        assert scene.ended_by() == error_pb2.ERROR_REASON_CALLER_STALLED
        assert not scene.is_lost()

    scene(story)


def test_a_deadline_is_kept_whatever_the_replica_does() -> None:
    def story(scene: Scene) -> None:
        scene.live.deadline = scene.clock.now() + 1.0
        scene.pass_by(1.0 + DEADLINE_SLACK - WATCH_INTERVAL, scene.token)
        assert scene.ended_by() is None
        scene.pass_by(0.3, scene.token)
        assert scene.ended_by() == error_pb2.ERROR_REASON_DEADLINE

    scene(story)
