"""Attempts to run a request on a replica: how they fail, which replica is tried next, and the quarantine of requests
that kill replicas."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, TypeAlias
from zlib import crc32

import grpc
from google.protobuf.message import DecodeError

from octet.clock import Clock
from octet.rpc.handlers import UNREAD_FIELD
from octet.rpc.messages import copy_message
from octet.rpc.refusal import ERROR_METADATA_KEY, Refusal, deadline_exceeded
from octet.telemetry.outcomes import CAPACITY_REASONS
from octet.v1 import error_pb2 as wire
from router.dispatch.replicas.replica import Replica, ReplicaConnection, ReplicaSet, any_replica
from router.refusals import content_quarantined, no_replica

FailureKind = Literal["free", "full", "dropped", "lost", "failed", "final"]
"""free: refused before any work, or never delivered.
full: no capacity now.
dropped: the connection or replica was lost before the request was accepted, or the request arrived too slowly.
lost: the replica was lost or hung after it had accepted the request.
failed: the replica could not answer; another one might.
final: a retry cannot help, because every replica would refuse or the deadline has passed."""

_log = logging.getLogger(__name__)
MAX_DEATHS = 2
MAX_RECORDS = 4096  # beyond this number the oldest suspected content is forgotten, before any quarantined content
TRIAL_WAIT_SECONDS = 1.0  # suspected content waits at most this long for another trial at the same replica to end
DEADLINE_SLACK = 0.25  # seconds for a replica to end a request at its deadline and to report its usage
_MAX_UNSAFE_RETRIES = 1  # a request that was lost with its replica is retried only once: it may be the cause
_KINDS_BY_REASON: dict[int, FailureKind] = {
    **dict.fromkeys((wire.ERROR_REASON_DRAINING, wire.ERROR_REASON_NOT_READY), "free"),
    **dict.fromkeys(CAPACITY_REASONS, "full"),
    **dict.fromkeys((wire.ERROR_REASON_ENGINE_FAILED, wire.ERROR_REASON_REPLICA_FAILED), "failed"),
}
_FAILED_CODES = {getattr(grpc.StatusCode, name) for name in ("INTERNAL", "UNKNOWN", "UNIMPLEMENTED", "ABORTED")}
_GONE_CODES = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
"""The connection failed, or gRPC cancelled a call before the replica received it."""
_CALLER_FIELDS = {"chat": "prompt", "chat.messages": "prompt", "chat.messages.role": "messages.role", "text": "prompt"}
"""Maps a replica's field names to the caller's. It is unknown here whether the caller sent a prompt or messages."""
_MIN_RETRY_MS = 50
_MAX_RETRY_MS = 30_000
_RETRY_SPREAD_MS = 250
_SHOWN_DIGITS = 16
ContentKey: TypeAlias = Callable[[], bytes]
"""Computes the content digest, which is needed only after a replica has died."""


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    kind: FailureKind
    refusal: Refusal  # sent to the caller unless a later attempt replaces it
    is_break: bool = False  # the connection or the replica's engine was lost while the replica had the request

    @property
    def is_out_of_time(self) -> bool:
        return self.refusal.code is grpc.StatusCode.DEADLINE_EXCEEDED


def classify_failure(error: Any, replica: str, *, was_open: bool, accepted: bool) -> AttemptFailure:
    """Classify the AioRpcError that ended a call. `was_open` means that the replica was connected and not draining when
    the request was sent, `accepted` that the replica had accepted the request."""
    code: grpc.StatusCode = error.code()
    cause = _error_from_metadata(error.trailing_metadata() or ())
    if cause is not None and cause.reason == wire.ERROR_REASON_DEADLINE and cause.field == UNREAD_FIELD:
        late = f"{replica} cannot be reached in time: {cause.message}"  # the caller may still have time
        return AttemptFailure("dropped", Refusal(wire.ERROR_REASON_NO_REPLICA, late))
    if cause is not None:
        died = accepted and cause.reason == wire.ERROR_REASON_REPLICA_FAILED
        return AttemptFailure(_KINDS_BY_REASON.get(cause.reason, "final"), _caller_refusal(code, cause), died)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return AttemptFailure("final", deadline_exceeded())
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return AttemptFailure("full", Refusal(wire.ERROR_REASON_QUEUE_FULL, f"{replica} accepts no more calls"))
    is_gone = code is grpc.StatusCode.UNAVAILABLE
    if code in _GONE_CODES and not accepted:
        return AttemptFailure("dropped" if was_open else "free", replica_unreachable(replica), was_open and is_gone)
    refusal = replica_lost(replica, f"the call ended with {code.name}")
    return AttemptFailure("failed" if code in _FAILED_CODES else "lost", refusal, is_gone)


def replica_lost(replica: str, why: str) -> Refusal:
    return Refusal(wire.ERROR_REASON_REPLICA_LOST, f"{replica} was lost: {why}")


def replica_unreachable(replica: str) -> Refusal:
    return Refusal(wire.ERROR_REASON_NO_REPLICA, f"{replica} cannot be reached")


def set_retry_after(refusal: Refusal, request_id: str, seconds: float | None) -> None:
    """If a replica was lost or none can be reached, set a retry delay: the `seconds` until one should serve, and a
    little more that differs by request id, so that callers do not all retry at once. None: the time is unknown."""
    is_away = refusal.error.reason in (wire.ERROR_REASON_REPLICA_LOST, wire.ERROR_REASON_NO_REPLICA)
    if is_away and seconds is not None and not refusal.error.HasField("retry_after_ms"):
        spread = _MIN_RETRY_MS + crc32(request_id.encode()) % _RETRY_SPREAD_MS
        refusal.error.retry_after_ms = min(round(seconds * 1000), _MAX_RETRY_MS) + spread


def _caller_refusal(code: grpc.StatusCode, cause: wire.Error) -> Refusal:
    error = copy_message(cause)
    if cause.field in _CALLER_FIELDS:
        error.field = _CALLER_FIELDS[cause.field]
        if cause.message.startswith(f"{cause.field} "):
            error.message = error.field + cause.message.removeprefix(cause.field)
    refusal = Refusal(error.reason, error.message, code=code)
    refusal.error.CopyFrom(error)
    return refusal


def _error_from_metadata(metadata: Iterable[tuple[str, bytes | str]]) -> wire.Error | None:
    raw = next((value for key, value in metadata if key == ERROR_METADATA_KEY and isinstance(value, bytes)), None)
    with suppress(DecodeError):
        return None if raw is None else wire.Error.FromString(raw)
    return None


class SuspectTrial:
    """A trial, at one replica, of content that may kill replicas: if the connection is lost, only content on trial is
    blamed. It ends at the first token or with the request."""

    def __init__(self, connection: ReplicaConnection, digest: bytes, *, has_turn: bool) -> None:
        self._connection = connection
        self._digest = digest
        self._has_turn = has_turn
        self._is_running = True
        connection.on_trial.append(digest)

    def passed(self) -> None:
        """End the trial without blame: remove the content's digest from the connection."""
        if self._is_running:
            self._connection.on_trial.remove(self._digest)
            self.lost()

    def lost(self) -> None:
        """End the trial because the connection broke. The digest stays on the connection as evidence."""
        if self._is_running and self._has_turn:
            self._connection.turn.release()
        self._is_running = False


@dataclass(slots=True)
class _SuspectRecord:
    last_death: float
    connections: dict[ReplicaConnection, bool] = field(default_factory=dict)
    """Maps each lost connection to whether the content was on trial there."""

    @property
    def num_deaths(self) -> int:
        """The number of replicas that died while they had the content. All deaths outside a trial together count as
        one, because other content may have caused them."""
        on_trial = [was_trial for connection, was_trial in self.connections.items() if connection.is_death]
        return sum(on_trial) + (not all(on_trial))

    @property
    def is_quarantined(self) -> bool:
        return self.num_deaths >= MAX_DEATHS


class Quarantine:
    def __init__(self, clock: Clock, seconds: Callable[[], float], max_records: int = MAX_RECORDS) -> None:
        """`seconds` returns how long content is remembered after the last death blamed on it; 0: not at all."""
        self._clock = clock
        self._seconds = seconds
        self._max_records = max_records
        self.records: OrderedDict[bytes, _SuspectRecord] = OrderedDict()
        """Suspected content by its digest, the most recent death last. Empty unless a connection was lost recently."""

    def check(self, content: ContentKey) -> None:
        record = self._find(content)
        if record is not None and record.is_quarantined:
            left = record.last_death + self._seconds() - self._clock.now()
            raise content_quarantined(record.num_deaths, left)

    def suspects(self, content: ContentKey) -> bool:
        record = self._find(content)
        return record is not None and record.num_deaths > 0

    async def start_trial(self, content: ContentKey, connection: ReplicaConnection) -> SuspectTrial | None:
        """Return a trial of suspected content; None if the content is not suspected or the connection is lost. Waits up
        to TRIAL_WAIT_SECONDS for the connection's current trial to end. Raises Refusal for quarantined content."""
        if not self.suspects(content):
            return None
        has_turn = False
        with suppress(TimeoutError):
            async with asyncio.timeout(TRIAL_WAIT_SECONDS):
                has_turn = await connection.turn.acquire()
        try:
            self.check(content)
            if connection.is_lost:
                return None
            trial = SuspectTrial(connection, content(), has_turn=has_turn)
            has_turn = False
            return trial
        finally:
            if has_turn:
                connection.turn.release()

    def died_with(self, content: ContentKey, connection: ReplicaConnection, *, on_trial: bool = False) -> None:
        connection.lose(self._clock.now())
        self._blame(content, connection, on_trial)

    def left(self, content: ContentKey, connection: ReplicaConnection, *, on_trial: bool = False) -> None:
        """Record a request that ended early. Its content is blamed if the connection is lost within BLAME_SECONDS."""
        if self._seconds() > 0:
            digest = content()
            connection.request_left(self._clock.now(), lambda: self._blame(lambda: digest, connection, on_trial))

    def answered(self, content: ContentKey) -> None:
        if self.records:
            self.records.pop(content(), None)

    def _blame(self, content: ContentKey, connection: ReplicaConnection, on_trial: bool) -> None:
        if self._seconds() <= 0:
            return
        digest = content()
        if connection.drained or (connection.on_trial and digest not in connection.on_trial):
            return
        on_trial = on_trial or digest in connection.on_trial
        record = self.records.setdefault(digest, _SuspectRecord(0.0))
        record.last_death = self._clock.now()
        self.records.move_to_end(digest)
        was_quarantined = record.is_quarantined
        record.connections[connection] = on_trial or record.connections.get(connection, False)
        if record.is_quarantined and not was_quarantined:
            shown = digest.hex()[:_SHOWN_DIGITS]
            _log.error("quarantined content %s: %d replicas died with it in flight", shown, record.num_deaths)
        if len(self.records) > self._max_records:
            suspects = (key for key, each in self.records.items() if not each.is_quarantined)
            self.records.pop(next(suspects, next(iter(self.records))))

    def _find(self, content: ContentKey) -> _SuspectRecord | None:
        oldest = self._clock.now() - self._seconds()
        while self.records and next(iter(self.records.values())).last_death <= oldest:
            self.records.popitem(last=False)
        return self.records.get(content()) if self.records else None


class ReplicaAttempt:
    """One attempt to have a replica answer a request. Inside its `with` block the attempt counts as in flight; leaving
    the block cancels the call."""

    __slots__ = (
        *("_breaker", "_epoch", "_is_probe", "abandoned", "breaker_state", "call", "connection", "has_started"),
        *("is_writing", "moved_at", "num_checked", "num_messages", "on_accept", "replica", "trial", "was_open"),
    )

    def __init__(
        self, replica: Replica, on_accept: Callable[[], None] = lambda: None, trial: SuspectTrial | None = None
    ) -> None:
        self.replica = replica
        self.connection = replica.connection
        self.trial = trial
        self.on_accept = on_accept
        self._breaker = replica.breaker
        self._is_probe = False
        self.breaker_state = replica.breaker.state  # the breaker's state when the replica was chosen
        self.was_open = replica.is_connected and not replica.draining
        self.call: Any = None
        self.has_started = False  # a token has arrived: the request can no longer move to another replica
        self.num_messages = 0
        self.is_writing = False  # a message waits for the caller to read it
        self.abandoned: str | None = None  # why the attempt was abandoned
        self.num_checked, self.moved_at = -1, 0.0  # used by the watchdog

    def __enter__(self) -> "ReplicaAttempt":
        self._is_probe = self._breaker.allow()
        self._epoch = self.replica.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self.replica.leave(self._epoch)
        if self.call is not None:
            self.call.cancel()

    def start(self) -> None:
        """Record the first token. It counts as a success for a half-open breaker."""
        self.has_started = True
        self.end_trial()
        if self._breaker.state == "half_open":
            self._breaker.succeeded()

    def end_trial(self) -> None:
        if self.trial is not None:
            self.trial.passed()

    def abandon(self, reason: str) -> None:
        """Cancel the attempt; the request may continue at another replica."""
        if self.abandoned is None and self.call is not None:
            self.abandoned = reason
            self.call.cancel()

    def report_outcome(self, failure: AttemptFailure | None) -> None:
        if failure is None or (failure.kind == "final" and self.has_started):
            self._breaker.succeeded()
        elif failure.kind in ("dropped", "lost", "failed"):
            self._breaker.failed()
        else:
            self.report_no_outcome()

    def report_no_outcome(self) -> None:
        if self._is_probe:
            self._breaker.gave_up()


@dataclass(frozen=True, slots=True)
class AttemptTarget:
    replica_set: ReplicaSet
    adapters: tuple[str, ...] = ()  # the names under which replicas load the adapters
    is_callers: bool = False  # whether the caller named the adapters
    may_answer: Callable[[Replica], bool] = any_replica  # whether a replica may get the request

    @property
    def specialist(self) -> str:
        return self.replica_set.specialist

    def reclassify(self, failure: AttemptFailure) -> AttemptFailure:
        """Return the failure, changed to "free" if the replica lacks an adapter that the caller did not name: a
        restarted replica may not have loaded the lane's adapters yet."""
        if self.is_callers or failure.refusal.error.reason != wire.ERROR_REASON_UNKNOWN_ADAPTER:
            return failure
        return AttemptFailure("free", no_replica(self.specialist))


def _retry_order(refusal: Refusal) -> tuple[bool, bool, int]:
    """Order refusals by what they offer the caller: a place first, then the shortest wait."""
    error = refusal.error
    return not error.HasField("place"), not error.HasField("retry_after_ms"), error.retry_after_ms


class AttemptSequence:
    def __init__(
        self,
        targets: Sequence[AttemptTarget],
        session: bytes,
        random: Random,
        *,
        is_offer: bool = False,
        preferred: str = "",
    ) -> None:
        """Retries are charged to the first target's budget. If `is_offer`, the first target gets the request only while
        it has room, and the second, if there is one, is the request's first choice. `preferred` is the process of the
        replica that is tried first, if it belongs to the first target and can answer."""
        self._preferred = preferred
        self._targets = list(targets)
        self._offered = targets[0] if is_offer else None
        self._first_choice = targets[-1] if is_offer else targets[0]
        self._retry_budget = targets[0].replica_set.retry_budget
        self._max_attempts = targets[0].replica_set.dispatch.max_attempts
        self._session = session
        self._random = random
        self._tried: set[str] = set()
        self._failures: list[AttemptFailure] = []
        self._target = targets[0]  # the target of the last attempt
        self._num_paid = 0
        self._num_unsafe = 0
        self._num_charged = 0  # failures up to the last one that was charged to the retry budget
        self._was_held_back = False  # whether an untried replica remained, but no retry was allowed

    def may_answer(self, replica: Replica) -> bool:
        """Whether the replica may get the request, as far as is known now."""
        return any(each.specialist == replica.specialist and each.may_answer(replica) for each in self._targets)

    @property
    def may_wait(self) -> bool:
        """Whether the request may wait for a usable replica: only if all failures are of replicas that were away or
        lost, and if another attempt is allowed."""
        is_away = all(failure.kind in ("free", "dropped", "lost") for failure in self._failures)
        return is_away and self._num_unsafe <= _MAX_UNSAFE_RETRIES and self._num_paid < self._max_attempts

    def start_over(self) -> None:
        self._tried.clear()

    def next(self) -> Replica | None:
        """Return the replica for the next attempt, a healthy one if possible; None if no replica is left or no retry is
        allowed. A failure that is retried is charged to the retry budget once, unless it was "free" or "full"."""
        replica = self._take_preferred() or self._choose(healthy=True) or self._choose(healthy=False)
        if replica is None:
            return None
        if not self._may_retry():
            self._was_held_back = True
            return None
        self._tried.add(replica.name)
        self._target = next(target for target in self._targets if target.specialist == replica.specialist)
        return replica

    def accepted(self, replica: Replica) -> None:
        """Remember the replica for the conversation's next request."""
        self._target.replica_set.affinity.learn(self._session, self._target.adapters, replica.name)

    @property
    def is_spill(self) -> bool:
        """Whether the last attempt goes to the second target because the first is full."""
        return self._target is not self._targets[0] and self._was_full

    @property
    def taken_over_from(self) -> str:
        """The first specialist if the last attempt goes to the second, and not because the first is full; else ""."""
        is_first = self._target is self._targets[0]
        return "" if is_first or self._was_full else self._targets[0].specialist

    def failed(self, failure: AttemptFailure) -> None:
        failure = self._target.reclassify(failure)
        if failure.kind == "final" and not failure.is_out_of_time and self._target is not self._first_choice:
            # The second choice cannot answer this request at all, so only the refusals by the first choice count.
            self._targets = [self._first_choice]
            self._was_held_back = True
            return
        self._failures.append(failure)
        self._num_paid += failure.kind != "free"
        self._num_unsafe += failure.kind in ("dropped", "lost", "failed")

    def refusal(self) -> Refusal:
        last = self._failures[-1] if self._failures else None
        if last is not None:
            is_held_back = self._was_held_back or self._num_unsafe > _MAX_UNSAFE_RETRIES
            if last.kind in ("final", "failed") or (last.kind in ("dropped", "lost") and is_held_back):
                return last.refusal
        full = [failure.refusal for failure in self._failures if failure.kind == "full"]
        if full:
            return min(full, key=_retry_order)
        return no_replica(" or ".join(target.specialist for target in self._targets))

    @property
    def _was_full(self) -> bool:
        return any(failure.kind == "full" for failure in self._failures)

    def _take_preferred(self) -> Replica | None:
        preferred, self._preferred = self._preferred, ""
        for target in self._targets if preferred else ():
            for each in target.replica_set.replicas.values():
                if each.instance == preferred and each.is_usable and target.may_answer(each):
                    return each
        return None

    def _choose(self, *, healthy: bool) -> Replica | None:
        """Choose an untried replica, of the first target if possible. Replicas of an offered target and, after a "full"
        failure, of the second choice must have free capacity. After such a failure, the last allowed attempt prefers
        the second target."""
        was_full = self._was_full
        is_last = was_full and self._num_paid >= self._max_attempts - 1
        for target in reversed(self._targets) if is_last else self._targets:
            if target is self._offered and not healthy:
                continue
            replica = target.replica_set.choose(
                self._tried,
                self._session,
                target.adapters,
                self._random,
                healthy=healthy,
                with_capacity=target is self._offered or (was_full and target is not self._first_choice),
                may_answer=target.may_answer,
            )
            if replica is not None:
                return replica
        return None

    def _may_retry(self) -> bool:
        last = self._failures[-1] if self._failures else None
        if last is None or last.kind == "free":
            return True
        if last.kind == "final" or self._num_unsafe > _MAX_UNSAFE_RETRIES or self._num_paid >= self._max_attempts:
            return False
        if last.kind == "full" or self._num_charged == len(self._failures):
            return True
        if self._retry_budget.take():
            self._num_charged = len(self._failures)
            return True
        return False
