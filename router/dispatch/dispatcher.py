"""From a decision to an answer: replica after replica until one answers, as long as nothing has been said yet."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

import grpc

from octet.clock import Clock
from octet.rpc.refusal import Refusal, past_deadline, past_first_token
from router.dispatch.course import Course
from router.dispatch.leg import Leg
from router.dispatch.live import Live
from router.dispatch.quarantine import Content, Quarantine
from router.dispatch.record import Record
from router.dispatch.relay import Nonsense, Write, relay
from router.dispatch.sweep import DEADLINE_SLACK
from router.reception.trace import Hop
from router.replicas.attempt import Attempt
from router.replicas.failure import Failure, failure_of, lost, name_a_time
from router.replicas.lane import Lane


@dataclass(frozen=True, slots=True)
class Errand:
    """One request on its way."""

    live: Live
    legs: tuple[Leg, ...]
    """The primary's, and the second choice's where there is one."""
    session: bytes
    """The key of the conversation; empty without one."""
    request_for: Callable[[str, float], bytes]
    """What the replica of a specialist is asked, with so many seconds left. Raises Refusal."""
    trace: Callable[[], Hop]
    """Of an attempt: a span for every one."""
    gone: Callable[[], Refusal]
    """Why the caller is not there any more."""
    record: Record
    write: Write
    content: Content


class Dispatcher:
    def __init__(self, clock: Clock, random: Random, quarantine: Quarantine) -> None:
        self._clock = clock
        self._random = random
        self.quarantine = quarantine

    async def answer(self, errand: Errand) -> None:
        """Returns when the whole answer is relayed. Raises Refusal, CallerGone."""
        self.quarantine.check(errand.content)
        primary = errand.legs[0].lane
        bucket = primary.bucket
        bucket.enter()
        try:
            await self._follow(Course(errand.legs, errand.session, self._random), primary, errand)
            bucket.answered()
            self.quarantine.answered(errand.content)
        except Refusal as refusal:
            name_a_time(refusal, errand.live.request_id)
            raise
        finally:
            bucket.leave()

    async def _follow(self, course: Course, primary: Lane, errand: Errand) -> None:
        waited = False
        while True:
            replica = course.next()
            if replica is None and course.may_wait and not waited:
                waited = True
                if await primary.wait_usable(self._seconds_to_begin(errand)):
                    course.start_over()
                    continue
            if replica is None:
                self._seconds_to_begin(errand)  # where there is no time left, that is why
                raise course.refusal()
            trial = await self.quarantine.trial(errand.content, replica.link)
            attempt = Attempt(replica, partial(course.let_in, replica), trial)
            errand.record.spills(course.is_spill)
            errand.record.takes_over(course.taken_over_from)
            failure = await self._attempt(errand, attempt)
            if failure is None:
                return
            if failure.kind == "full":
                errand.record.had_no_room(replica.specialist)
            if attempt.started:
                raise failure.refusal
            course.failed(failure)

    async def _attempt(self, errand: Errand, attempt: Attempt) -> Failure | None:
        """None when it answered."""
        try:
            failure = await self._asked(errand, attempt)
        except BaseException:
            self._gave_up(errand, attempt)
            raise
        if failure is not None and failure.is_break and attempt.lost is None:
            self.quarantine.died_with(errand.content, attempt.link, tried=attempt.trial is not None)
            if attempt.trial is not None:
                attempt.trial.lost()
        elif failure is not None and failure.is_out_of_time:
            self._gave_up(errand, attempt)
        else:
            _over(attempt)
        return failure

    def _gave_up(self, errand: Errand, attempt: Attempt) -> None:
        """Before the answer was whole: the caller went, or had no more time."""
        if attempt.call is not None:
            self.quarantine.left(errand.content, attempt.link, tried=attempt.trial is not None)
        _over(attempt)

    async def _asked(self, errand: Errand, attempt: Attempt) -> Failure | None:
        seconds_left = self._seconds_left(errand)
        request = errand.request_for(attempt.replica.specialist, seconds_left)
        hop = errand.trace()
        errand.record.asked(attempt, hop.span_id)
        errand.live.attempt = attempt
        try:
            with attempt:
                attempt.call = attempt.replica.generate(
                    request, timeout=seconds_left + DEADLINE_SLACK, metadata=hop.headers
                )
                asyncio.get_running_loop().call_soon(errand.record.draft.write_up)  # behind the call, which goes first
                failure = await _relayed(errand, attempt)
        except BaseException:
            attempt.gave_up()
            errand.record.ended((errand.live.ending or errand.gone()).error)
            raise
        finally:
            errand.live.attempt = None
        if failure is None or attempt.started:
            errand.live.first_deadline = None
        attempt.judge(failure)
        errand.record.ended(None if failure is None else failure.refusal.error)
        return failure

    def _seconds_left(self, errand: Errand) -> float:
        self._seconds_to_begin(errand)
        return errand.live.deadline - self._clock.now()

    def _seconds_to_begin(self, errand: Errand) -> float:
        """Until there is no more use in asking anybody."""
        live, now = errand.live, self._clock.now()
        if now >= live.deadline:
            raise past_deadline()
        if live.first_deadline is None:
            return live.deadline - now
        if now >= live.first_deadline:
            raise past_first_token()
        return min(live.first_deadline, live.deadline) - now


def _over(attempt: Attempt) -> None:
    if attempt.trial is not None:
        attempt.trial.over()


async def _relayed(errand: Errand, attempt: Attempt) -> Failure | None:
    name = attempt.replica.name
    try:
        await relay(attempt, errand.write, errand.record)
    except grpc.aio.AioRpcError as error:
        return failure_of(error, name, was_open=attempt.was_open, accepted=attempt.num_messages > 0)
    except Nonsense as nonsense:
        return Failure("failed", lost(name, str(nonsense)))
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if attempt.lost is None or (task is not None and task.cancelling()):
            raise
        return Failure("lost", lost(name, attempt.lost))
    return None
