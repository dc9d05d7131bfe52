"""The replicas of all specialists: discovery, watching and retirement, and the watchdog of requests and replicas."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from random import Random

import grpc
from grpc_health.v1 import health_pb2

from admission.breakers import CircuitBreaker
from octet.background import cancel_tasks, run_every, run_forever, run_in_background
from octet.clock import Clock
from octet.config.ensemble import DispatchConfig, Ensemble
from octet.fault_points import fault_injected
from octet.rpc.checks import has_finite_numbers
from octet.rpc.refusal import caller_stalled, deadline_exceeded, first_token_late
from octet.supervisor.weights import weights_socket
from octet.v1 import specialist_pb2 as wire
from router.dispatch.attempts import DEADLINE_SLACK, ReplicaAttempt
from router.dispatch.http2.channel import UNIX
from router.dispatch.replicas.replica import Replica, ReplicaSet
from router.dispatch.transport import READ_LIMITS, Connect, ReplicaTarget, check_address, is_dns, resolve_targets
from router.request import Request

_log = logging.getLogger(__name__)
WATCH_INTERVAL = 0.1
_MAX_STEP_SECONDS = 2 * WATCH_INTERVAL
MIN_INTERVAL_SECONDS = 0.05  # between two reports of a replica whose load changes constantly
REPORTS_PER_SECOND = 1000  # for all replicas together: a few percent of a core
_REPORTS_PER_PERIOD = 2  # even in a large fleet, a replica reports this often before it counts as stale or hung
_FIRST_PAUSE = 0.1
_MAX_PAUSE = 1.0
_RESOLVE_SECONDS = 2.0  # between two lookups of a DNS name
_IDLE_CHECK_SECONDS = 0.1


class Fleet:
    def __init__(
        self, ensemble: Ensemble, addresses: Mapping[str, Sequence[str]], clock: Clock, random: Random, connect: Connect
    ) -> None:
        """`addresses` maps specialists to addresses, whose order determines replica names. Raises AddressInvalid."""
        listed = [address for each in addresses.values() for address in each]
        for address in listed:
            check_address(address)
        self._ensemble = ensemble
        self._addresses = addresses
        self._placed: dict[str, list[ReplicaTarget]] = {}  # by specialist, in place of its addresses
        self._has_dns = any(map(is_dns, listed))
        self._clock = clock
        self._random = random
        self._connect = connect
        self.replica_sets = {each: ReplicaSet(each, ensemble.dispatch, clock) for each in ensemble.names}
        self._intervals = report_intervals(len(listed), ensemble.dispatch)
        self._watchers: dict[Replica, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.changed = asyncio.Event()  # set after every change; the waiter clears it

    @property
    def replicas(self) -> list[Replica]:
        return [replica for each in self.replica_sets.values() for replica in each.replicas.values()]

    def find_instance(self, instance: str) -> Replica | None:
        """Return the replica whose process has this id."""
        return next((each for each in self.replicas if each.instance == instance), None)

    @property
    def dispatch(self) -> DispatchConfig:
        return self._ensemble.dispatch

    @property
    def waiting_for(self) -> list[str]:
        return [name for name, each in self.replica_sets.items() if not each.is_usable]

    async def start(self) -> None:
        await self._resolve_all()
        if self._has_dns:
            self._tasks.add(run_every(_RESOLVE_SECONDS, self._resolve_all, "resolve replica addresses"))

    async def close(self) -> None:
        await cancel_tasks(*self._watchers.values(), *self._tasks)
        await asyncio.gather(*(replica.channel.close() for replica in self._watchers))

    def stop_waiting(self) -> None:
        """Let no request wait for a replica any more, because the router is draining."""
        for each in self.replica_sets.values():
            each.stop_waiting()

    def apply(self, ensemble: Ensemble) -> None:
        """Apply a configuration with the same specialists. Changed dispatch settings reset breakers and budgets."""
        before, self._ensemble = self.dispatch, ensemble
        if ensemble.dispatch == before:
            return
        for each in self.replica_sets.values():
            each.configure(ensemble.dispatch)
            for replica in each.replicas.values():
                replica.breaker = self._new_breaker()
        self._set_intervals(report_intervals(len(self.replicas), ensemble.dispatch))

    def place(self, specialist: str, weights: Sequence[int]) -> None:
        """Let the specialist have replicas with these weights, each at all of its Unix sockets."""
        targets = [
            weights_target(*each, number) for number in weights for each in enumerate(self._addresses[specialist])
        ]
        if targets != self._placed.get(specialist):
            self._placed[specialist] = targets
            self._update(self.replica_sets[specialist], targets)

    async def _resolve_all(self) -> None:
        found: dict[str, list[ReplicaTarget]] = {}
        for specialist, listed in self._addresses.items():
            targets = found.setdefault(specialist, [*self._placed.get(specialist, ())])
            for index, address in enumerate(() if targets else listed):
                targets += await self._resolve(specialist, index, address)
        self._set_intervals(stable_intervals(self._intervals, sum(map(len, found.values())), self.dispatch))
        for specialist, targets in found.items():
            self._update(self.replica_sets[specialist], targets)

    async def _resolve(self, specialist: str, index: int, address: str) -> Sequence[ReplicaTarget]:
        if not is_dns(address):
            return (ReplicaTarget(str(index), address),)
        try:
            return await resolve_targets(address)
        except OSError as error:
            _log.warning("cannot look up %s (%s): keeping the known replicas", address, error)
            return [each.target for each in self.replica_sets[specialist].replicas.values() if each.target.authority]

    def _update(self, replica_set: ReplicaSet, targets: Sequence[ReplicaTarget]) -> None:
        """Add the replicas that are newly listed, and remove those no longer listed. The channel of a removed replica
        closes when its last request has ended."""
        specialist, replicas = replica_set.specialist, replica_set.replicas
        listed = {f"{specialist}-{target.label}": target for target in targets}
        for name in [name for name in replicas if name not in listed]:
            self._retire(replicas.pop(name))
        max_running = self._ensemble.specialist(specialist).max_running
        for name, target in listed.items():
            if name not in replicas:
                channel = self._connect(target, READ_LIMITS)
                breaker = self._new_breaker()
                replicas[name] = Replica(specialist, target, channel, breaker, self._clock, max_running)
                self._watch(replica_set, replicas[name])
        replica_set.replicas_changed()

    def _set_intervals(self, intervals: "ReportIntervals") -> None:
        if intervals == self._intervals:
            return
        self._intervals = intervals
        for each in self.replica_sets.values():
            for replica in each.replicas.values():
                self._watchers.pop(replica).cancel()
                self._watch(each, replica)

    def _watch(self, replica_set: ReplicaSet, replica: Replica) -> None:
        def on_change() -> None:
            replica_set.replicas_changed()
            self.changed.set()

        watcher = ReplicaWatcher(replica, self._intervals, self._random, on_change)
        self._watchers[replica] = run_forever(watcher.run, f"watch {replica.name}")

    def _retire(self, replica: Replica) -> None:
        _log.info("%s at %s is no longer listed", replica.name, replica.target.address)
        self._watchers.pop(replica).cancel()
        task = run_in_background(_close_when_idle(replica), f"close {replica.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _new_breaker(self) -> CircuitBreaker:
        config = self.dispatch
        return CircuitBreaker(
            self._clock, failures=config.failures, cool_down=config.cool_down, max_cool_down=config.max_cool_down
        )


def weights_target(index: int, address: str, number: int) -> ReplicaTarget:
    """Return the target of a supervised replica. `address` is its socket with the configured weights."""
    if number == 0:
        return ReplicaTarget(str(index), address)
    socket = weights_socket(Path(address.removeprefix(UNIX)), number)
    return ReplicaTarget(f"{index}.{number}", f"{UNIX}{socket}", weights=number)


async def _close_when_idle(replica: Replica) -> None:
    try:
        while replica.inflight:
            await asyncio.sleep(_IDLE_CHECK_SECONDS)
    finally:
        await replica.channel.close()


@dataclass(frozen=True, slots=True)
class ReportIntervals:
    """The minimum (`interval`) and maximum (`heartbeat`) seconds between two reports of one replica."""

    interval: float
    heartbeat: float


def report_intervals(num_replicas: int, dispatch: DispatchConfig) -> ReportIntervals:
    """Return the intervals for a fleet of this size. They grow by doubling, so one more replica rarely changes them."""
    longest = min(dispatch.stale_seconds, dispatch.hang_seconds) / _REPORTS_PER_PERIOD
    enough = num_replicas / REPORTS_PER_SECOND
    steps = [MIN_INTERVAL_SECONDS * 2**step for step in range(16)]
    shorter = list(takewhile(lambda step: step <= longest and step < 2 * enough, steps))
    interval = shorter[-1] if shorter else MIN_INTERVAL_SECONDS
    return ReportIntervals(interval, max(dispatch.heartbeat_seconds, interval))


def stable_intervals(current: ReportIntervals, num_replicas: int, dispatch: DispatchConfig) -> ReportIntervals:
    """Return `current` if it suits `num_replicas` or twice as many; otherwise the intervals for `num_replicas`."""
    suitable = [report_intervals(count, dispatch) for count in (num_replicas, 2 * num_replicas)]
    return current if current in suitable else suitable[0]


class ReplicaWatcher:
    def __init__(
        self, replica: Replica, intervals: ReportIntervals, random: Random, on_change: Callable[[], None]
    ) -> None:
        self._replica = replica
        self._random = random
        self._on_change = on_change
        interval, heartbeat = (max(1, round(each * 1000)) for each in (intervals.interval, intervals.heartbeat))
        request = wire.WatchLoadRequest(min_interval_ms=interval, heartbeat_ms=heartbeat)
        self._load_request = request.SerializeToString()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(self._watch_health, "health"))
            tasks.create_task(self._repeat(self._watch_load, "load"))

    async def _repeat(self, watch: Callable[[], AsyncGenerator[None, None]], what: str) -> None:
        """Run `watch` again whenever it ends, after a pause that doubles until a report arrives. The same error is
        logged only once until a report arrives."""
        pause = _FIRST_PAUSE
        logged = ""
        while True:
            try:
                async with aclosing(watch()) as reports:
                    async for _ in reports:
                        pause, logged = _FIRST_PAUSE, ""
                        self._on_change()
            except Exception as error:
                text = _describe_error(error)
                is_lost = isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.UNAVAILABLE
                if text != logged and not is_lost:  # the loss of a replica is already logged
                    _log.warning("%s does not report its %s: %s", self._replica.name, what, text)
                    logged = text
            self._on_change()
            await asyncio.sleep(pause * (0.5 + self._random.random()))
            pause = min(pause * 2, _MAX_PAUSE)

    async def _watch_health(self) -> AsyncGenerator[None, None]:
        request = health_pb2.HealthCheckRequest().SerializeToString()
        call = self._replica.channel.stream("/grpc.health.v1.Health/Watch", request, wait_for_ready=True)
        try:
            async for raw in call:
                response = health_pb2.HealthCheckResponse.FromString(raw)
                self._replica.health_reported(response.status == health_pb2.HealthCheckResponse.SERVING)
                yield
        except Exception as error:
            self._replica.disconnected(_describe_error(error))
            raise
        finally:
            call.cancel()
        self._replica.disconnected("its health stream ended")

    async def _watch_load(self) -> AsyncGenerator[None, None]:
        path = "/octet.v1.Specialist/WatchLoad"
        call = self._replica.channel.stream(path, self._load_request, wait_for_ready=True)
        self._replica.num_watches += 1
        try:
            async for raw in call:
                if fault_injected("report.lost"):
                    continue
                self._replica.load_reported(_parse_report(raw))
                yield
        finally:
            self._replica.num_watches -= 1
            call.cancel()


def _parse_report(raw: bytes) -> wire.LoadReport:
    """Return the report. Raises DecodeError, or ValueError for a number that is not finite."""
    report: wire.LoadReport = wire.LoadReport.FromString(raw)
    if not has_finite_numbers(report):
        raise ValueError("a number in the load report is not finite")
    return report


def _describe_error(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"


class Watchdog:
    """Checks ten times a second for requests past their deadline, stalled attempts and hung replicas, instead of
    setting a timer for every message. Time in which the router itself was stopped does not count as silence."""

    def __init__(self, clock: Clock, dispatch: Callable[[], DispatchConfig]) -> None:
        self._clock = clock
        self._dispatch = dispatch
        self._last = clock.now()
        self._lived = 0.0
        self._silences: dict[Replica, tuple[int, float]] = {}  # the number of signals, and when it last changed

    def check(
        self, requests: Iterable[Request], attempts: Mapping[ReplicaAttempt, Request], replicas: list[Replica]
    ) -> None:
        now = self._clock.now()
        self._lived += min(now - self._last, _MAX_STEP_SECONDS)
        self._last = now
        for request in requests:
            if now >= request.deadline + DEADLINE_SLACK:
                request.end(deadline_exceeded())
            elif now >= request.first_token_by + DEADLINE_SLACK and not request.has_first_token:
                request.end(first_token_late())
        for attempt, request in attempts.items():
            if request.ending is None:
                self._check_attempt(request, attempt)
        self._silences = {replica: self._check_replica(replica) for replica in replicas}
        for attempt in attempts:
            if attempt.replica.is_hung and not attempt.is_writing:
                attempt.abandon(f"it did not report for {self._dispatch().hang_seconds:g} s")

    def _check_attempt(self, request: Request, attempt: ReplicaAttempt) -> None:
        if attempt.num_checked != attempt.num_messages:
            if attempt.num_messages:
                attempt.replica.num_signals += 1
            attempt.num_checked, attempt.moved_at = attempt.num_messages, self._lived
            return
        limit = self._dispatch().stall_seconds
        if self._lived - attempt.moved_at < limit:
            return
        if attempt.is_writing:
            request.end(caller_stalled(f"the caller read nothing for {limit:g} s"))
        elif attempt.has_started:  # before the first token only the deadline applies
            attempt.abandon(f"it sent no token for {limit:g} s")

    def _check_replica(self, replica: Replica) -> tuple[int, float]:
        num_signals, since = self._silences.get(replica, (-1, 0.0))
        if num_signals != replica.num_signals or not replica.should_report:
            return replica.num_signals, self._lived
        if self._lived - since >= self._dispatch().hang_seconds:
            replica.mark_hung(self._lived - since)
        return num_signals, since
