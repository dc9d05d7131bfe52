"""The replicas of a specialist as the router sees them."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from random import Random

from admission.breakers import CircuitBreaker
from admission.budgets import RetryBudget
from octet.clock import Clock
from octet.config.ensemble import DispatchConfig
from octet.terminal import replace_unprintable
from octet.v1 import specialist_pb2 as wire
from router.dispatch.replicas.selection import ReplicaSnapshot, SessionAffinity, pick_replica, sample_replicas
from router.dispatch.transport import ReplicaChannel, ReplicaTarget

_log = logging.getLogger(__name__)
BLAME_SECONDS = 2.0  # a request that ended less than this before the loss of its connection counts as in flight
_MAX_LEAVERS = 256
_RECOVERY_SECONDS = 2.0
"""A replica that hung gets one request as a probe. Without one, it has recovered after reporting for this long."""
_EXPECTED_SECONDS = 30.0  # requests wait for a specialist that has been away for less than this, or two restarts
_NUM_RESTARTS = 3  # how many measured restarts of a replica are remembered
_LATE_SHARE = 0.25  # a restart that takes longer than before is expected to take at least this share of it more
_RETRY_SHARE = 0.15
"""Retries allowed in addition to the burst, as a share of the requests in flight. With a burst of ten and at least 200
requests, a specialist that always fails gets at most a fifth more requests."""
SUPERVISED_ENDS = ("killed", "out_of_memory", "exited", "hung")  # known from the supervisor of a replica
RESTART_KINDS = (*SUPERVISED_ENDS, "drained", "unknown")
DRAINED_REASON = "stopped after a drain"
UNKNOWN_REASON = "restarted; the reason is not known here"
_MAX_REASON = 240


@dataclass(eq=False, slots=True)
class ReplicaConnection:
    """One connection to a replica. After a loss, the next connection's first report shows whether the replica died."""

    instance: str = ""  # the process at the other end; empty until reported
    drained: bool = False  # the replica had announced that it would stop
    is_lost: bool = False
    lost_at: float = inf
    survived: bool = False  # the next connection reached the same process: only the network failed
    on_trial: list[bytes] = field(default_factory=list)
    """Digests of suspected content that was sent over this connection and has no token yet; kept after a disconnect."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by one trial of suspected content at a time
    _leavers: deque[tuple[float, Callable[[], None]]] = field(default_factory=lambda: deque(maxlen=_MAX_LEAVERS))

    @property
    def is_death(self) -> bool:
        return self.is_lost and not (self.drained or self.survived)

    def request_left(self, now: float, blame: Callable[[], None]) -> None:
        """Record a request that ended early. `blame` is called if the connection is lost within BLAME_SECONDS."""
        if self.is_lost:
            blame()
        else:
            self._leavers.append((now, blame))

    def lose(self, now: float) -> None:
        self.is_lost, self.lost_at = True, now
        leavers = [*self._leavers]
        self._leavers.clear()
        for at, blame in leavers:
            if now - at <= BLAME_SECONDS:
                blame()


@dataclass(frozen=True, slots=True)
class ReplicaRestart:
    """A process that took over at a replica's address, and how its predecessor ended."""

    instance: str
    started_ms: int  # 0 if unknown
    kind: str  # one of RESTART_KINDS
    reason: str
    number: int = 0  # restarts by the supervisor so far, including this one; 0 if unknown

    @classmethod
    def from_report(cls, report: wire.LoadReport, *, had_drained: bool) -> "ReplicaRestart":
        """The supervisor's account counts. Without one, only a drain tells a planned stop from a death."""
        end = report.previous_end
        if end.kind in SUPERVISED_ENDS and end.text.strip():
            reason = replace_unprintable(end.text)[:_MAX_REASON]
            return cls(report.instance, report.started_unix_ms, end.kind, reason, end.number)
        kind, reason = ("drained", DRAINED_REASON) if had_drained else ("unknown", UNKNOWN_REASON)
        return cls(report.instance, report.started_unix_ms, kind, reason)


@dataclass(eq=False)
class Replica:
    specialist: str
    target: ReplicaTarget
    channel: ReplicaChannel
    breaker: CircuitBreaker
    clock: Clock
    max_running: int  # a default until the replica reports its own

    def __post_init__(self) -> None:
        self.name = f"{self.specialist}-{self.target.label}"
        self.inflight = 0
        self._epoch = 0  # the number of reports
        self._since_report = 0  # requests sent since the last report, which cannot include them
        self.report: wire.LoadReport | None = None
        self.adapters: frozenset[str] = frozenset()  # the adapters that the last report lists as loaded
        self._reported = -inf
        self.is_connected = False
        self.connection = ReplicaConnection()  # the current connection; while disconnected, the next one
        self._last_connection: ReplicaConnection | None = None  # the lost one, until a report names the new process
        self._instance = ""  # the process that reported last, even before a disconnect
        self._was_draining = False
        self.restart: ReplicaRestart | None = None  # the last one that this router has seen
        self.is_serving = False  # according to its health service
        self._has_served = False
        self.num_watches = 0  # open load streams; without one, no signals are expected
        self.is_hung = False
        self._was_lost_hung = False
        self._recovering_since: float | None = None  # the first report after a hang, until a probe is answered
        self.restart_seconds: deque[float] = deque(maxlen=_NUM_RESTARTS)
        """The last measured times from the loss of a process to the moment when the next one served."""
        self._away_since: float | None = None  # when the connection was lost, until a process is known to serve again
        self._serving_since = 0.0
        self._has_died = False  # whether another process has taken over since `_away_since`
        self.num_signals = 0  # reports and answers received; the replica is silent while the number does not change

    @property
    def draining(self) -> bool:
        return self.report is not None and self.report.draining

    @property
    def instance(self) -> str:
        """The process at the other end; empty until reported."""
        return self.connection.instance

    @property
    def should_report(self) -> bool:
        return self.is_connected and self.num_watches > 0

    @property
    def is_usable(self) -> bool:
        is_up = self.is_connected and self.is_serving and not self.is_hung and not self._is_breaking
        return is_up and not self.draining and self.breaker.would_allow

    @property
    def _is_breaking(self) -> bool:
        """Whether a call has just lost its connection, and no report has arrived since."""
        return self.connection.is_lost and self._reported <= self.connection.lost_at

    def seconds_to_return(self, restart_seconds: float | None) -> float | None:
        """Return the seconds until the replica should serve, given the usual time of a restart; None if unknown."""
        if self.is_usable:
            return 0.0
        since = self.connection.lost_at if self._is_breaking else self._away_since
        if restart_seconds is None or since is None:
            return restart_seconds if self.is_hung else None
        return max(restart_seconds - (self.clock.now() - since), _LATE_SHARE * restart_seconds)

    def snapshot(self, stale_seconds: float) -> ReplicaSnapshot:
        """Return the current state. A load report older than `stale_seconds` is ignored."""
        report = self.report
        if report is None or self.clock.now() - self._reported > stale_seconds:
            depth, preempting, refusing = self.inflight, False, False
        else:
            reported = max(0, report.waiting + report.running - report.shadows)
            depth = max(reported + self._since_report, self.inflight)
            preempting, refusing = report.preempting, report.refusing
        return ReplicaSnapshot(
            name=self.name,
            depth=depth,
            max_running=self.max_running,
            preempting=preempting,
            adapters=self.adapters,
            has_capacity=not refusing and depth < self.max_running,
            is_closed=self.draining or (self.is_connected and not self.is_serving),
            is_broken=not self.is_connected or self._is_breaking or self.is_hung or not self.breaker.would_allow,
        )

    def enter(self) -> int:
        """Count a request as sent. The result must be passed to `leave`."""
        self.inflight += 1
        self._since_report += 1
        return self._epoch

    def leave(self, epoch: int) -> None:
        self.inflight -= 1
        if epoch == self._epoch:
            self._since_report -= 1

    def load_reported(self, report: wire.LoadReport) -> None:
        was_draining = self.draining
        if self.is_connected:
            self._identify(report)
        self.report = report
        self.adapters = frozenset(adapter.name for adapter in report.adapters)
        self._reported = self.clock.now()
        self.max_running = max(1, report.max_running)
        self._epoch += 1
        self._since_report = 0
        self.num_signals += 1
        if self.draining and not was_draining:
            _log.info("%s is draining", self.name)
        if self.is_hung:
            _log.info("%s reports again", self.name)
            self.is_hung = False
            self._start_recovery()
        elif self._recovering_since is not None:
            self._check_recovery(self._recovering_since)
        self._measure_restart()

    def _measure_restart(self) -> None:
        """Once it is known that the connection leads to a new process, and that this process serves, measure how long
        the replica was away."""
        if self._away_since is None or not self.is_serving or self._last_connection is not None:
            return
        seconds = self._serving_since - self._away_since
        if self._has_died and seconds <= _EXPECTED_SECONDS:  # a longer absence was an outage, not a restart
            self.restart_seconds.append(seconds)
        self._away_since, self._has_died = None, False

    def _start_recovery(self) -> None:
        """After a hang, make the next request a probe."""
        self.breaker.probe_now()
        self._recovering_since = self.clock.now()

    def _check_recovery(self, since: float) -> None:
        if self.breaker.state != "half_open":  # a probe has ended
            self._recovering_since = None
        elif self.clock.now() - since >= _RECOVERY_SECONDS and self.breaker.would_allow:
            self._recovering_since = None
            self.breaker.succeeded()

    def _identify(self, report: wire.LoadReport) -> None:
        self.connection.instance = report.instance
        self.connection.drained = self.connection.drained or report.draining
        last = self._last_connection
        if last is not None:
            last.survived = bool(report.instance) and last.instance == report.instance
            self._has_died = self._has_died or not last.survived
            self._last_connection = None
        if report.instance and report.instance != self._instance:
            if self._instance or report.HasField("previous_end"):
                self.restart = ReplicaRestart.from_report(report, had_drained=self._was_draining)
                if self._instance:  # otherwise the restart may be older than this router
                    _log.warning("%s restarted: %s", self.name, self.restart.reason)
            self._instance = report.instance
        self._was_draining = report.draining

    def mark_hung(self, seconds: float) -> None:
        if not self.is_hung:
            _log.warning("%s is hung: no report for %.1f s", self.name, seconds)
            self.is_hung = True
            self.breaker.trip()

    def health_reported(self, is_serving: bool) -> None:
        if not self.is_connected:
            self.is_connected = True
            if self._was_lost_hung:
                self._was_lost_hung = False
                self._start_recovery()
            else:
                self.breaker.succeeded()
        if is_serving != self.is_serving:
            self.is_serving = is_serving
            self._serving_since = self.clock.now()
            self._measure_restart()
            level = logging.INFO if self._has_served else logging.DEBUG
            self._has_served = True
            state = "serves" if is_serving else "does not serve"
            _log.log(level, "%s at %s %s", self.name, self.target.address, state)

    def disconnected(self, reason: str) -> None:
        """Record the loss of the connection and forget the process: the next connection may lead to a different one."""
        if self.is_connected:
            _log.warning("lost %s at %s: %s", self.name, self.target.address, reason)
            self.connection.lose(self.clock.now())
            if self._away_since is None:
                self._away_since = self.clock.now()
            self._last_connection, self.connection = self.connection, ReplicaConnection()
        self._was_lost_hung = self._was_lost_hung or self.is_hung
        self.is_connected = self.is_serving = self.is_hung = False
        self._recovering_since = self.report = None
        self.adapters = frozenset()
        self.breaker.trip()


def any_replica(_: Replica) -> bool:
    return True


class ReplicaSet:
    def __init__(self, specialist: str, dispatch: DispatchConfig, clock: Clock) -> None:
        self.specialist = specialist
        self.configure(dispatch)
        self.replicas: dict[str, Replica] = {}  # by name
        self.affinity = SessionAffinity(clock)
        self._clock = clock
        self._waiters: dict[asyncio.Future[None], Callable[[Replica], bool]] = {}  # requests, and what may answer them
        self._was_usable = False
        self._last_usable = clock.now()  # a router that starts expects its replicas soon
        self._is_closing = False

    def configure(self, dispatch: DispatchConfig) -> None:
        self.dispatch = dispatch
        self.retry_budget = RetryBudget(dispatch.retry_burst, dispatch.retry_ratio, _RETRY_SHARE)

    @property
    def is_usable(self) -> bool:
        return self.can_answer(any_replica)

    @property
    def is_mixed(self) -> bool:
        """Whether a supervisor runs replicas with other weights than the configured ones."""
        return any(replica.target.weights for replica in self.replicas.values())

    @property
    def num_waiting(self) -> int:
        """The number of requests that wait for a replica."""
        return len(self._waiters)

    def can_answer(self, may_answer: Callable[[Replica], bool]) -> bool:
        return any(replica.is_usable and may_answer(replica) for replica in self.replicas.values())

    def replicas_changed(self) -> None:
        was_usable, self._was_usable = self._was_usable, self.is_usable
        if was_usable or self._was_usable:
            self._last_usable = self._clock.now()
        for waiter, may_answer in self._waiters.items():
            if not waiter.done() and (self._is_closing or self.can_answer(may_answer)):
                waiter.set_result(None)

    def choose(
        self,
        tried: Container[str],
        session: bytes,
        adapters: Sequence[str],
        random: Random,
        *,
        healthy: bool,
        with_capacity: bool = False,
        may_answer: Callable[[Replica], bool] = any_replica,
    ) -> Replica | None:
        """Return a replica that was not tried and is not hung, or None. `healthy` limits the choice to replicas that
        are likely to answer, `with_capacity` to those that would probably run the request immediately."""
        stale = self.dispatch.stale_seconds

        def inspect(replica: Replica) -> ReplicaSnapshot | None:
            if replica.name in tried or replica.is_hung or not may_answer(replica):
                return None  # a hung replica would not answer before it reports again
            found = replica.snapshot(stale)
            is_unfit = (healthy and (found.is_closed or found.is_broken)) or (with_capacity and not found.has_capacity)
            return None if is_unfit else found

        last = self.affinity.find(session, adapters)
        members = tuple(self.replicas.values())
        if healthy:
            known = None if last is None else self.replicas.get(last)
            chosen = sample_replicas(members, inspect, session, adapters, self.dispatch, random, known)
        else:
            snapshots = [found for found in map(inspect, members) if found is not None]
            chosen = pick_replica(snapshots, session, adapters, self.dispatch, random, last) if snapshots else None
        return None if chosen is None else self.replicas[chosen.name]

    @property
    def seconds_to_return(self) -> float | None:
        """Seconds until a replica should serve, by the measured restarts of this specialist's replicas: 0 if one does,
        None if unknown."""
        found = (each.seconds_to_return(self._restart_seconds) for each in self.replicas.values())
        return min((left for left in found if left is not None), default=None)

    @property
    def _restart_seconds(self) -> float | None:
        return max((each for replica in self.replicas.values() for each in replica.restart_seconds), default=None)

    async def wait_usable(self, seconds: float, may_answer: Callable[[Replica], bool] = any_replica) -> bool:
        """Wait at most `seconds` until a replica that `may_answer` is usable, and only as long as the specialist is
        expected back. Return whether one is usable. Return at once if too many requests wait already."""
        may_answer = may_answer if self.is_mixed else any_replica  # alike replicas are ready together
        self.replicas_changed()  # neither a hung replica nor a lost call has told the waiters
        away = self._clock.now() - self._last_usable
        seconds = min(seconds, max(_EXPECTED_SECONDS, 2 * (self._restart_seconds or 0.0)) - away)
        if seconds > 0 and not self._is_closing and self.num_waiting < self.dispatch.wait_requests:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = may_answer
            self.replicas_changed()
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await waiter
                        return not self._is_closing  # even if another waiter was faster and is its probe
            finally:
                del self._waiters[waiter]
        return self.can_answer(may_answer)

    def stop_waiting(self) -> None:
        """End the wait of every request, and let no other request wait."""
        self._is_closing = True
        self.replicas_changed()
