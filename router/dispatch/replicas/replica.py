"""The replicas of a specialist as the router sees them, and the choice among them: power of k choices with affinity."""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from math import inf
from random import Random
from typing import TypeVar

from admission.breakers import CircuitBreaker, filter_ejected
from admission.budgets import RetryBudget
from octet.clock import Clock
from octet.config.ensemble import DispatchConfig
from octet.terminal import replace_unprintable
from octet.v1 import specialist_pb2 as wire
from router.dispatch.transport import ReplicaChannel, ReplicaTarget

_log = logging.getLogger(__name__)
BLAME_SECONDS = 2.0  # a request that ended less than this before the loss of its connection counts as in flight
MAX_SESSIONS = 10_000
SESSION_SECONDS = 3600.0  # longer than a replica with other traffic keeps the blocks of an idle conversation
_MAX_LEAVERS = 256
_RECOVERY_SECONDS = 2.0
"""A replica that hung gets one request as a probe. Without one, it has recovered after reporting for this long."""
_EXPECTED_SECONDS = 30.0  # requests wait for a specialist that has been away for less than this, or two restarts
_NUM_RESTARTS = 3  # how many measured restarts of a replica are remembered
_LATE_SHARE = 0.25  # a restart that takes longer than before is expected to take at least this share of it more
_RETRY_SHARE = 0.15
"""Retries allowed in addition to the burst, as a share of the requests in flight. With a burst of ten and at least 200
requests, a specialist that always fails gets at most a fifth more requests."""
_KEY_BYTES = 16
SUPERVISED_ENDS = ("killed", "out_of_memory", "exited", "hung")  # known from the supervisor of a replica
RESTART_KINDS = (*SUPERVISED_ENDS, "drained", "unknown")
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

    @classmethod
    def from_report(cls, report: wire.LoadReport, *, had_drained: bool) -> "ReplicaRestart":
        """The supervisor's account counts. Without one, only a drain tells a planned stop from a death."""
        end = report.previous_end
        if end.kind in SUPERVISED_ENDS and end.text.strip():
            return cls(report.instance, report.started_unix_ms, end.kind, replace_unprintable(end.text)[:_MAX_REASON])
        kind, reason = ("drained", "stopped after a drain") if had_drained else ("unknown", UNKNOWN_REASON)
        return cls(report.instance, report.started_unix_ms, kind, reason)


@dataclass(frozen=True, slots=True)
class ReplicaSnapshot:
    """The state of a replica for one selection."""

    name: str
    depth: int  # its known requests; shadows are not counted, because other requests preempt them
    max_running: int
    preempting: bool = False
    adapters: frozenset[str] = frozenset()
    has_capacity: bool = True  # whether a request would probably run immediately
    is_closed: bool = False  # whether it takes no new requests: it is draining or not serving yet
    is_broken: bool = False  # whether it is unreachable or hung, or its breaker is open


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
        if restart_seconds is None or since is None or self.is_hung:
            return None
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
        if self._has_died:
            self.restart_seconds.append(self._serving_since - self._away_since)
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
        self._usable = asyncio.Event()
        self._last_usable = clock.now()  # a router that starts expects its replicas soon
        self.num_waiting = 0  # requests that wait for a replica
        self._is_closing = False

    def configure(self, dispatch: DispatchConfig) -> None:
        self.dispatch = dispatch
        self.retry_budget = RetryBudget(dispatch.retry_burst, dispatch.retry_ratio, _RETRY_SHARE)

    @property
    def is_usable(self) -> bool:
        return any(replica.is_usable for replica in self.replicas.values())

    def replicas_changed(self) -> None:
        was_usable = self._usable.is_set()
        if self.is_usable or self._is_closing:
            self._usable.set()
        else:
            self._usable.clear()
        if was_usable or self._usable.is_set():
            self._last_usable = self._clock.now()

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

    async def wait_usable(self, seconds: float) -> bool:
        """Wait at most `seconds` until a replica is usable. Return whether one is. Return at once if too many requests
        wait already, or if the specialist has been away for so long that it is not expected back."""
        self.replicas_changed()  # neither a hung replica nor a lost call changes the event
        away = self._clock.now() - self._last_usable
        is_expected = away <= max(_EXPECTED_SECONDS, 2 * (self._restart_seconds or 0.0))
        if is_expected and not self._is_closing and self.num_waiting < self.dispatch.wait_requests and seconds > 0:
            self.num_waiting += 1
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._usable.wait()
                        return not self._is_closing  # even if another waiter was faster and is its probe
            finally:
                self.num_waiting -= 1
        return self.is_usable

    def stop_waiting(self) -> None:
        """End the wait of every request, and let no other request wait."""
        self._is_closing = True
        self._usable.set()


class SessionAffinity:
    """Remembers which replica last served each conversation. Forgets entries that are too old or too many."""

    def __init__(self, clock: Clock, max_sessions: int = MAX_SESSIONS, seconds: float = SESSION_SECONDS) -> None:
        if max_sessions < 1:
            raise ValueError(f"max_sessions must be at least 1, got {max_sessions}")
        self._clock = clock
        self._max_sessions = max_sessions
        self._seconds = seconds
        self._replicas: OrderedDict[bytes, tuple[str, float]] = OrderedDict()  # name and time, least recent first

    def learn(self, session: bytes, adapters: Sequence[str], replica: str) -> None:
        """Remember the replica that accepted a request of this conversation: it now holds the conversation's prefix."""
        if not session:
            return
        key = _affinity_key(session, adapters)
        self._replicas[key] = (replica, self._clock.now())
        self._replicas.move_to_end(key)
        if len(self._replicas) > self._max_sessions:
            self._replicas.popitem(last=False)

    def find(self, session: bytes, adapters: Sequence[str]) -> str | None:
        oldest = self._clock.now() - self._seconds
        while self._replicas and next(iter(self._replicas.values()))[1] < oldest:
            self._replicas.popitem(last=False)
        found = self._replicas.get(_affinity_key(session, adapters)) if session else None
        return None if found is None else found[0]


def _affinity_key(session: bytes, adapters: Sequence[str]) -> bytes:
    """Return the key of a conversation. It includes the adapters, because cached blocks belong to one adapter stack."""
    hasher = blake2b(session, digest_size=_KEY_BYTES)
    for name in adapters:
        hasher.update(b"\0" + name.encode())
    return hasher.digest()


_MemberT = TypeVar("_MemberT", Replica, ReplicaSnapshot)


def sample_replicas(
    members: Sequence[_MemberT],
    inspect: Callable[[_MemberT], ReplicaSnapshot | None],
    session: bytes,
    adapters: Sequence[str],
    dispatch: DispatchConfig,
    random: Random,
    last: _MemberT | None = None,
) -> ReplicaSnapshot | None:
    """Choose the cheapest of a random sample of usable members (power of k choices); None if no member is usable. A
    member is usable if `inspect` returns its snapshot. `last` is the replica that last served the conversation."""

    def usable(order: Iterator[_MemberT]) -> Iterator[ReplicaSnapshot]:
        return (found for found in map(inspect, order) if found is not None)

    order = shuffle_lazily(members, random)
    sampled = list(islice(usable(order), dispatch.choices))
    if not sampled:
        return None
    wanted = frozenset(adapters)
    if wanted and not any(wanted <= each.adapters for each in sampled):
        sampled += islice(usable(each for each in order if wanted <= each.adapters), 1)
    affine = None
    if session and len(members) > 1:
        affine = None if last is None else inspect(last)
        if affine is None:  # rendezvous hashing: the choice changes only when that member is lost
            score = affinity_score(session)
            affine = inspect(max(members, key=score))
            affine = affine or next(usable(iter(sorted(members, key=score, reverse=True)[1:])), None)
    if affine is not None:
        sampled = [each for each in sampled if each.name != affine.name] + [affine]
    if len(sampled) == 1:
        return sampled[0]

    def cost(each: ReplicaSnapshot) -> float:
        """Return the load as a share of a full batch, with penalties and bonuses."""
        cost = each.depth / max(1, each.max_running)
        if each.preempting:
            cost += dispatch.preempting_penalty
        if each is affine:
            cost -= dispatch.session_bonus
        if wanted and wanted <= each.adapters:
            cost -= dispatch.adapter_bonus
        return cost

    return min(sampled, key=cost)


def shuffle_lazily(members: Sequence[_MemberT], random: Random) -> Iterator[_MemberT]:
    """Yield all members in random order; the work is proportional to the number of members taken."""
    moved: dict[int, int] = {}
    for place in range(len(members)):
        other = place + int(random.random() * (len(members) - place))
        found = moved.get(other, other)
        moved[other] = moved.get(place, place)
        yield members[found]


def pick_replica(
    snapshots: Sequence[ReplicaSnapshot],
    session: bytes,
    adapters: Sequence[str],
    dispatch: DispatchConfig,
    random: Random,
    last: str | None = None,
) -> ReplicaSnapshot:
    """Pick a replica by power of k choices from those that `filter_ejected` keeps. Raises ValueError if none is
    left."""
    able = filter_ejected(snapshots, is_closed=lambda each: each.is_closed, is_broken=lambda each: each.is_broken)
    known = next((each for each in able if each.name == last), None)
    chosen = sample_replicas(able, lambda each: each, session, adapters, dispatch, random, known)
    if chosen is None:
        raise ValueError("no replicas to pick from")
    return chosen


def affinity_score(session: bytes) -> Callable[[Replica | ReplicaSnapshot], bytes]:
    """Return a function that scores replicas for a new conversation. The highest score wins; all routers agree."""
    key = blake2b(session, digest_size=32).digest()
    return lambda each: blake2b(each.name.encode(), key=key, digest_size=8).digest()
