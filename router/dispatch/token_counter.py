"""How many tokens a prompt is: asked of a replica that would answer it now. Nothing is computed for it, and it says
nothing about a replica's health."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import grpc
from google.protobuf.message import DecodeError

from octet.clock import Clock
from octet.rpc.refusal import past_deadline
from octet.v1 import inference_pb2 as wire
from router.dispatch.course import Course
from router.dispatch.leg import Leg
from router.dispatch.live import Live
from router.replicas.attempt import Attempt
from router.replicas.failure import Failure, failure_of, lost


@dataclass(frozen=True, slots=True)
class Question:
    live: Live
    legs: tuple[Leg, ...]
    """The primary's, and the second choice's where there is one."""
    session: bytes
    request_for: Callable[[str, float], bytes]
    """What the replica of a specialist would be asked, with so many seconds left."""
    trace: Callable[[], tuple[tuple[str, str], ...]]


class TokenCounter:
    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock = clock
        self._random = random

    async def count(self, question: Question) -> wire.CountResponse:
        """Raises Refusal."""
        course = Course(question.legs, question.session, self._random)
        while (replica := course.next()) is not None:
            counted = await self._ask(question, Attempt(replica))
            if isinstance(counted, int):
                return wire.CountResponse(prompt_tokens=counted, specialist=replica.specialist)
            course.failed(counted)
        raise course.refusal()

    async def _ask(self, question: Question, attempt: Attempt) -> int | Failure:
        seconds_left = question.live.deadline - self._clock.now()
        if seconds_left <= 0:
            raise past_deadline()
        replica = attempt.replica
        request = question.request_for(replica.specialist, seconds_left)
        question.live.attempt = attempt
        try:
            with attempt:
                attempt.call = replica.count_tokens(request, timeout=seconds_left, metadata=question.trace())
                return await _counted(attempt)
        finally:
            question.live.attempt = None
            attempt.gave_up()


async def _counted(attempt: Attempt) -> int | Failure:
    name = attempt.replica.name
    try:
        found = wire.CountTokensResponse.FromString(await attempt.call)
    except grpc.aio.AioRpcError as error:
        return failure_of(error, name, was_open=attempt.was_open, accepted=False)
    except DecodeError:
        return Failure("failed", lost(name, "its count cannot be read"))
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if attempt.lost is None or (task is not None and task.cancelling()):
            raise
        return Failure("lost", lost(name, attempt.lost))
    num_tokens: int = found.prompt_tokens
    return num_tokens
