"""Dispatch a request: try replicas until one answers, and relay its stream to the caller."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Protocol, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from octet.clock import Clock
from octet.rpc.checks import has_finite_numbers
from octet.rpc.handlers import CallerGone
from octet.rpc.refusal import Refusal, deadline_exceeded, first_token_late
from octet.v1 import inference_pb2 as wire
from octet.v1 import specialist_pb2 as specialist_wire
from router.dispatch.attempts import (
    DEADLINE_SLACK,
    AttemptFailure,
    AttemptSequence,
    AttemptTarget,
    Quarantine,
    ReplicaAttempt,
    classify_failure,
    replica_lost,
    set_retry_after,
)
from router.dispatch.replicas.fleet import Fleet
from router.dispatch.replicas.replica import Replica, ReplicaSet
from router.dispatch.tickets import RequestTickets, Tickets
from router.dispatch.transport import GENERATE
from router.observe.observers import RequestObservers, TokenGap
from router.refusals import caller_gone
from router.request import Request, Tracer
from router.routing.dispatch_plan import Candidate, DispatchPlan
from router.routing.policy import build_replica_request

REPORT_SECONDS = 0.25  # observers get the gaps between tokens in batches, this often and at the end
_MAX_WAITS = 4  # a request waits only this often, however short its waits are
_COUNT_TOKENS = "/octet.v1.Specialist/CountTokens"
_CHUNK = 0x12
_USAGE = 0x1A
"""The tags of a chunk and of usage in an event, the same in GenerateEvent and InferEvent."""
_MessageT = TypeVar("_MessageT", bound=Message)

Write: TypeAlias = Callable[[bytes], Awaitable[None]]


class StreamViolation(Exception):
    """The replica violated the protocol of its stream."""


class RelayListener(Protocol):
    def accepted(self, accepted: wire.Accepted) -> bytes:
        """Return the serialized event to send to the caller in place of `accepted`."""

    def first_chunk(self, num_tokens: int) -> None: ...
    def next_chunk(self, num_tokens: int) -> None: ...
    def finished(self, usage: wire.Usage) -> None: ...


async def relay(attempt: ReplicaAttempt, write: Write, listener: RelayListener) -> None:
    """Relay the attempt's stream to `write`. Of its chunks, only the tokens are counted. Raises AioRpcError or
    StreamViolation if the replica fails, CallerGone if the caller has left, CancelledError if the attempt was abandoned
    or cancelled."""
    read = attempt.call.read
    was_accepted = False
    try:
        while (raw := await read()) is not grpc.aio.EOF:
            attempt.num_messages += 1
            tag = raw[0] if raw else 0
            if tag == _CHUNK:
                num_tokens = len(_parse_event(raw).chunk.token_ids)
                if not attempt.has_started:
                    if not was_accepted:
                        raise StreamViolation("a token arrived before the acceptance")
                    attempt.start()
                    listener.first_chunk(num_tokens)
                else:
                    listener.next_chunk(num_tokens)
                attempt.is_writing = True
                await write(raw)
                attempt.is_writing = False
            elif tag == _USAGE:
                if not was_accepted:
                    raise StreamViolation("usage arrived before the acceptance")
                listener.finished(_check_finite(_parse_event(raw).usage))
                if await read() is not grpc.aio.EOF:
                    raise StreamViolation("a message arrived after the usage")
                return
            else:
                accepted = _parse_accepted(raw)
                if was_accepted:
                    raise StreamViolation("a second acceptance arrived")
                was_accepted = True
                attempt.on_accept()
                event = listener.accepted(accepted)
                attempt.is_writing = True
                await write(event)
                attempt.is_writing = False
    except (grpc.aio.AioRpcError, StreamViolation):
        raise
    except Exception as error:
        if attempt.is_writing:  # the caller's call is over
            raise CallerGone from error
        raise
    raise StreamViolation("the stream ended without usage")


def _parse_accepted(raw: bytes) -> wire.Accepted:
    event = _parse_event(raw)
    if event.WhichOneof("event") != "accepted":
        raise StreamViolation("an event has an unknown type")
    return _check_finite(event.accepted)


def _parse_event(raw: bytes) -> specialist_wire.GenerateEvent:
    try:
        event: specialist_wire.GenerateEvent = specialist_wire.GenerateEvent.FromString(raw)
    except DecodeError:
        raise StreamViolation("an event is not a GenerateEvent") from None
    return event


def _check_finite(message: _MessageT) -> _MessageT:
    """Return the message. Raises StreamViolation for a number that is not finite: a JSON receipt cannot contain one."""
    if not has_finite_numbers(message):
        raise StreamViolation("an event contains a number that is not finite")
    return message


class DispatchRecorder:
    """Records the attempts of a request on its receipt, and reports tokens to the observers."""

    _attempt: ReplicaAttempt  # the last attempt

    def __init__(self, request: Request, clock: Clock, observers: RequestObservers, tickets: RequestTickets) -> None:
        self.tickets = tickets
        self._request = request
        self._draft = request.draft
        self._clock = clock
        self._observers = observers
        self._asked_at = self._accepted_at = self._reported_at = 0.0
        self._last_token: float | None = None  # when the last chunk with tokens arrived
        self._gaps: list[TokenGap] = []  # gaps that are not yet reported
        self._span_id = ""

    def attempt_started(self, attempt: ReplicaAttempt, span_id: str = "") -> None:
        self._attempt = attempt
        self._span_id = span_id
        self._asked_at = self._clock.now()
        self._draft.dispatched(self._asked_at)

    def accepted(self, accepted: wire.Accepted) -> bytes:
        attempt, replica = self._attempt, self._attempt.replica
        self._request.accepted_by = replica.specialist
        self._request.full.discard(replica.specialist)
        self._accepted_at = now = self._clock.now()
        self.tickets.accepted(accepted)
        plan = self._request.plan
        experts = () if plan is None else plan.candidate(replica.specialist).experts
        self._draft.accepted(replica.specialist, replica.name, attempt.breaker_state, accepted, now, experts)
        return self._draft.routed_event()

    def first_chunk(self, num_tokens: int) -> None:
        self._request.has_first_token = True
        now = self._reported_at = self._clock.now()
        ttft = self._draft.first_chunk(now)
        self._observers.began(self._attempt.replica.specialist, ttft, now - self._accepted_at)
        self._add_gap(num_tokens, now)

    def next_chunk(self, num_tokens: int) -> None:
        now = self._clock.now()
        self._add_gap(num_tokens, now)
        if now - self._reported_at >= REPORT_SECONDS:
            self._reported_at = now
            self._report_gaps()

    def _add_gap(self, num_tokens: int, now: float) -> None:
        """Divide the time since the last token evenly among the tokens of a chunk. The further tokens of the first
        chunk follow without a gap. So n tokens have n - 1 gaps, whose sum is the time from the first to the last."""
        before = self._last_token
        num_gaps = num_tokens - (before is None)
        if num_gaps > 0:
            self._gaps.append(TokenGap(0.0 if before is None else (now - before) / num_tokens, num_gaps))
        if num_tokens:
            self._last_token = now

    def finished(self, usage: wire.Usage) -> None:
        self._draft.finished(usage, self._clock.now())

    def attempt_ended(self, error: wire.Error | None) -> None:
        self._report_gaps()
        replica, began = self._attempt.replica, self._asked_at
        seconds = self._clock.now() - began
        self._draft.attempt(replica.specialist, replica.name, seconds, error, began=began, span_id=self._span_id)

    def _report_gaps(self) -> None:
        if self._gaps:
            gaps, self._gaps = self._gaps, []
            self._observers.gaps(self._attempt.replica.specialist, gaps)


@dataclass
class Dispatcher:
    clock: Clock
    random: Random
    fleet: Fleet
    quarantine: Quarantine
    tracer: Tracer
    observers: RequestObservers
    tickets: Tickets
    attempts: dict[ReplicaAttempt, Request] = field(default_factory=dict)  # the attempts in progress

    async def answer(self, request: Request, plan: DispatchPlan, write: Write) -> None:
        """Relay an answer. Raises Refusal if no replica completes one, and CallerGone if the caller has left."""
        quarantine = self.quarantine
        if quarantine.records:
            quarantine.check(request.content_digest)
        retry_budget = self.fleet.replica_sets[plan.candidates[0].specialist].retry_budget
        retry_budget.enter()
        tickets = self.tickets.open(request, self.fleet.find_instance)
        try:
            await self._run(request, plan, write, tickets)
            retry_budget.answered()
            if quarantine.records:
                quarantine.answered(request.content_digest)
        except Refusal as refusal:
            self._announce_return(refusal, request, plan)
            tickets.end(refusal)
            raise
        finally:
            retry_budget.leave()
            tickets.end()

    def give_place_up(self, request: Request) -> None:
        """Give up the place of the request's ticket, because the request is refused before it is dispatched."""
        if request.ticket:
            self.tickets.open(request, self.fleet.find_instance).end()

    def _announce_return(self, refusal: Refusal, request: Request, plan: DispatchPlan) -> None:
        found = (self.fleet.replica_sets[each.specialist].seconds_to_return for each in plan.candidates)
        set_retry_after(refusal, request.request_id, min((each for each in found if each is not None), default=None))

    async def count(self, request: Request, plan: DispatchPlan) -> wire.CountResponse:
        """Have a replica count the tokens of the prompt. Raises Refusal if no replica does."""
        self.quarantine.check(request.content_digest)
        request.has_first_token = True  # counting has no deadline for a first token
        attempts = self._attempts(request, plan)
        while (replica := attempts.next()) is not None:
            counted = await self._count_at(request, plan, ReplicaAttempt(replica))
            if isinstance(counted, int):
                return wire.CountResponse(prompt_tokens=counted, specialist=replica.specialist)
            attempts.failed(counted)
        refusal = plan.otherwise or attempts.refusal()
        self._announce_return(refusal, request, plan)
        raise refusal

    def _attempts(self, request: Request, plan: DispatchPlan, preferred: str = "") -> AttemptSequence:
        targets = [self._target(request, candidate) for candidate in plan.candidates]
        offer, session = plan.is_offer, request.session.key
        return AttemptSequence(targets, session, self.random, is_offer=offer, preferred=preferred)

    def _target(self, request: Request, candidate: Candidate) -> AttemptTarget:
        def may_answer(replica: Replica) -> bool:
            revision = "" if replica.report is None else replica.report.revision
            if not revision and candidate.revision and replica_set.is_mixed:
                return False  # it may run other weights than the lane's
            return candidate.fits(replica.name, revision, replica.adapters)

        replica_set = self.fleet.replica_sets[candidate.specialist]
        return AttemptTarget(replica_set, candidate.adapters, bool(request.adapters), may_answer)

    async def _run(self, request: Request, plan: DispatchPlan, write: Write, tickets: RequestTickets) -> None:
        attempts = self._attempts(request, plan, "" if tickets.place is None else tickets.place.instance)
        lead = self.fleet.replica_sets[plan.lead]
        recorder = DispatchRecorder(request, self.clock, self.observers, tickets)
        num_waits = 0
        while True:
            replica = attempts.next()
            if replica is None and plan.otherwise is None and attempts.may_wait and num_waits < _MAX_WAITS:
                num_waits += 1
                if await self._wait(request, lead, attempts.may_answer):
                    attempts.start_over()
                    continue
            if replica is None:
                self._seconds_to_start(request)  # a missed deadline has its own refusal, which takes precedence
                raise plan.otherwise or attempts.refusal()
            trial = None
            if self.quarantine.records:
                trial = await self.quarantine.start_trial(request.content_digest, replica.connection)
            attempt = ReplicaAttempt(replica, partial(attempts.accepted, replica), trial)
            request.draft.dispatched_to(replica.specialist, attempts.is_spill, attempts.taken_over_from)
            failure = await self._attempt(request, plan, attempt, recorder, write)
            if failure is None:
                return
            tickets.refused(replica, failure.refusal)
            if failure.kind == "full" and not failure.refusal.is_permanent:  # a deadline too short is no overload
                request.full.add(replica.specialist)
            if attempt.has_started:
                raise failure.refusal
            attempts.failed(failure)

    async def _wait(self, request: Request, lead: ReplicaSet, may_answer: Callable[[Replica], bool]) -> bool:
        """Wait for a replica of the first specialist that may answer, in all at most for the configured share of the
        request's time. Return whether one can be asked. Raises Refusal if a deadline of the request has passed."""
        seconds, began = self._seconds_to_start(request), self.clock.now()
        share = lead.dispatch.wait_share * (request.first_token_by - request.arrival) - request.waited
        try:
            return await lead.wait_usable(min(seconds, share), may_answer)
        finally:
            request.waited += self.clock.now() - began
            request.draft.waited(request.waited)

    async def _attempt(
        self, request: Request, plan: DispatchPlan, attempt: ReplicaAttempt, recorder: DispatchRecorder, write: Write
    ) -> AttemptFailure | None:
        """Return the attempt's failure, or None if the replica answered."""
        try:
            failure = await self._ask(request, plan, attempt, recorder, write)
        except BaseException:
            self._left(request, attempt)
            raise
        if failure is not None and failure.is_break and attempt.abandoned is None:
            on_trial = attempt.trial is not None
            self.quarantine.died_with(request.content_digest, attempt.connection, on_trial=on_trial)
            if attempt.trial is not None:
                attempt.trial.lost()
        elif failure is not None and failure.is_out_of_time:
            self._left(request, attempt)
        else:
            attempt.end_trial()
        return failure

    def _left(self, request: Request, attempt: ReplicaAttempt) -> None:
        """Handle a request that ended before its answer was complete."""
        if attempt.call is not None:
            on_trial = attempt.trial is not None
            self.quarantine.left(request.content_digest, attempt.connection, on_trial=on_trial)
        attempt.end_trial()

    async def _ask(
        self, request: Request, plan: DispatchPlan, attempt: ReplicaAttempt, recorder: DispatchRecorder, write: Write
    ) -> AttemptFailure | None:
        self._seconds_to_start(request)
        left, name = request.deadline - self.clock.now(), attempt.replica.name
        message = self._compose(request, plan, attempt.replica.specialist, left)
        recorder.tickets.fill(message, attempt.replica, is_first_choice=attempt.replica.specialist == plan.lead)
        trace = self.tracer.outgoing(request.trace)
        recorder.attempt_started(attempt, trace.span_id)
        self.attempts[attempt] = request
        failure = None
        try:
            with attempt:
                stream = attempt.replica.channel.stream
                attempt.call = stream(
                    GENERATE, message.SerializeToString(), timeout=left + DEADLINE_SLACK, metadata=trace.headers
                )
                asyncio.get_running_loop().call_soon(request.draft.write_pending)  # after the call is sent
                await relay(attempt, write, recorder)
        except grpc.aio.AioRpcError as error:
            failure = classify_failure(error, name, was_open=attempt.was_open, accepted=attempt.num_messages > 0)
        except StreamViolation as violation:
            failure = AttemptFailure("failed", replica_lost(name, str(violation)))
        except BaseException as error:
            failure = _abandonment(attempt, error)
            if failure is None:
                attempt.report_no_outcome()
                recorder.attempt_ended((request.ending or caller_gone(request, self.clock.now())).error)
                raise
        finally:
            del self.attempts[attempt]
        attempt.report_outcome(failure)
        recorder.attempt_ended(None if failure is None else failure.refusal.error)
        return failure

    async def _count_at(self, request: Request, plan: DispatchPlan, attempt: ReplicaAttempt) -> int | AttemptFailure:
        left, replica = request.deadline - self.clock.now(), attempt.replica
        if left <= 0:
            raise deadline_exceeded()
        message = self._compose(request, plan, replica.specialist, left)
        headers = self.tracer.outgoing(request.trace).headers
        self.attempts[attempt] = request
        try:
            with attempt:
                attempt.call = replica.channel.call(
                    _COUNT_TOKENS, message.SerializeToString(), timeout=left, metadata=headers
                )
                num_tokens: int = wire.CountTokensResponse.FromString(await attempt.call).prompt_tokens
                return num_tokens
        except grpc.aio.AioRpcError as error:
            return classify_failure(error, replica.name, was_open=attempt.was_open, accepted=False)
        except DecodeError:
            return AttemptFailure("failed", replica_lost(replica.name, "its token count cannot be parsed"))
        except asyncio.CancelledError as error:
            failure = _abandonment(attempt, error)
            if failure is None:
                raise
            return failure
        finally:
            del self.attempts[attempt]
            attempt.report_no_outcome()

    def _compose(
        self, request: Request, plan: DispatchPlan, specialist: str, seconds_left: float
    ) -> specialist_wire.GenerateRequest:
        config = request.policy.specialists[specialist]
        return build_replica_request(request, config, plan.candidate(specialist).adapters, seconds_left)

    def _seconds_to_start(self, request: Request) -> float:
        """Return the seconds until the first token is due. Raises Refusal if a deadline of the request has passed."""
        now = self.clock.now()
        if now >= request.deadline:
            raise deadline_exceeded()
        if request.first_deadline is not None and now >= request.first_deadline:
            raise first_token_late()
        return request.first_token_by - now


def _abandonment(attempt: ReplicaAttempt, error: BaseException) -> AttemptFailure | None:
    """Return the failure if the watchdog abandoned the attempt; None if `error` has another cause."""
    task = asyncio.current_task()
    is_cancelled = isinstance(error, asyncio.CancelledError) and not (task is not None and task.cancelling())
    if not is_cancelled or attempt.abandoned is None:
        return None
    return AttemptFailure("lost", replica_lost(attempt.replica.name, attempt.abandoned))
