"""One shadow of a request: the copied request, and the stream of its answer."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal

import grpc

from admission.budgets import NoShadow
from octet.rpc.handlers import CallerGone
from octet.v1 import inference_pb2 as wire
from router.dispatch.attempts import ContentKey, ReplicaAttempt, classify_failure
from router.dispatch.dispatcher import StreamViolation, relay
from router.dispatch.replicas.replica import Replica, ReplicaConnection
from router.quality.answers import CancelReason, CapturedAnswer, ShadowAnswer, is_chunk
from router.receipts import clip_bytes
from router.request import OutgoingTrace
from router.routing.dispatch_plan import MAX_SHADOW_NAME, Candidate, ShadowOrder, describe_order

ShadowEnding = Literal["answered", "shed", "failed"]
NotSentReason = Literal["no_replica", "no_memory", "no_choice", "same_lane", "quarantined", "no_answer"]
StreamReason = Literal["refused", "too_long", "timed_out", "broken", "invalid", "error"]
ShadowEndReason = NoShadow | NotSentReason | CancelReason | StreamReason | Literal[""]
"""Why a shadow was shed or failed; empty if it was answered. docs/routing.md describes the reasons."""
SHADOW_SUFFIX = "~shadow"  # marks the copy's request id in logs
_ID_BYTES = 128  # the longest request id that replicas accept


class ShadowCounters:
    """Counts since the start: ordered = answered + shed + failed + not ended yet."""

    def __init__(self) -> None:
        self.ordered = 0
        self.sent = 0
        self.ended: Counter[tuple[str, str]] = Counter()  # by ending and reason

    def _count(self, ending: str) -> int:
        return sum(number for (each, _), number in self.ended.items() if each == ending)

    @property
    def answered(self) -> int:
        return self._count("answered")

    @property
    def shed(self) -> int:
        return self._count("shed")

    @property
    def failed(self) -> int:
        return self._count("failed")


class OrderedShadow:
    """What has become of an ordered shadow. Its end is counted once; later ends are ignored."""

    __slots__ = ("_counters", "ending", "order", "reason", "replica")

    def __init__(self, order: ShadowOrder, counters: ShadowCounters) -> None:
        counters.ordered += 1
        self._counters = counters
        self.order = order
        self.replica = ""  # the replica to which it was sent
        self.ending: ShadowEnding | None = None
        self.reason: ShadowEndReason = ""

    def sent(self, replica: str) -> None:
        self.replica = replica
        self._counters.sent += 1

    def end(self, ending: ShadowEnding, reason: ShadowEndReason = "") -> None:
        if self.ending is None:
            self.ending, self.reason = ending, reason
            self._counters.ended[ending, reason] += 1

    def write(self, receipt: wire.Receipt) -> None:
        """Write into the receipt what has become of the shadow so far."""
        order = receipt.between.shadow
        describe_order(self.order, order)
        order.outcome = self.ending or ("sent" if self.replica else "")
        order.reason, order.replica = self.reason, clip_bytes(self.replica, MAX_SHADOW_NAME)


@dataclass(frozen=True, slots=True)
class ShadowTask:
    order: ShadowOrder
    num_bytes: int  # estimated size of the request before it is composed
    compose: Callable[[float], wire.GenerateRequest]
    """Composes the request for a replica of the order's specialist, given the seconds left. Called at most once."""
    trace: Callable[[], OutgoingTrace]
    may_answer: Callable[[Replica], bool]
    content: ContentKey


def to_shadow_request(request: wire.GenerateRequest, candidate: Candidate, seed: int) -> wire.GenerateRequest:
    """Change `request`, in place, into the shadow's request: on the shadow's lane, and with the primary's seed so that
    the answers are comparable. It has no log probabilities, no first-token deadline and no session."""
    request.request_id = clip_bytes(request.request_id, _ID_BYTES - len(SHADOW_SUFFIX)) + SHADOW_SUFFIX
    request.adapters[:] = candidate.adapters
    request.seed = seed
    request.shadow = True
    request.ClearField("session_key")
    request.ClearField("first_token_timeout_ms")
    request.sampling.ClearField("num_logprobs")
    return request


class ShadowTooLong(CallerGone):
    """The shadow's answer exceeds the capture limit."""


class ShadowStream:
    """Reads the answer to one shadow. A shadow affects neither the replica's breaker nor its counters."""

    def __init__(
        self, replica: Replica, ordered: OrderedShadow, primary: wire.Receipt, captured: CapturedAnswer, num_bytes: int
    ) -> None:
        """`primary` is the original request's receipt as it was when a replica accepted that request."""
        self.replica = replica
        self.ordered = ordered
        self.order = ordered.order
        self.primary = primary
        self.captured = captured
        self.num_bytes = num_bytes  # bytes taken from the byte budget for the request
        self.content = b""
        self.broken: ReplicaConnection | None = None
        """The connection, if it broke after the replica had accepted the shadow."""
        self.most_chunks = inf  # an answer has at most one chunk per token, plus one for held-back text
        self.span_id = ""  # set when the shadow is sent, if the request is traced
        self.began = self.ended = 0.0
        self.usage = wire.Usage()
        self._num_chunks = 0
        self._lane = wire.Lane()

    async def listen(self, call: object) -> None:
        """Read the stream to its end, and record how it ended. Raises CancelledError if cancelled."""
        attempt = _UncountedAttempt(self.replica)
        attempt.call = call
        try:
            await relay(attempt, self._write, self)
        except CallerGone:
            self.ordered.end("shed", "too_long")
        except StreamViolation:
            self.ordered.end("failed", "invalid")
        except grpc.aio.AioRpcError as error:
            failure = classify_failure(error, self.replica.name, was_open=True, accepted=attempt.num_messages > 0)
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                self.ordered.end("failed", "timed_out")
            elif failure.kind in ("free", "full"):
                self.ordered.end("shed", "refused")
            else:
                self.ordered.end("failed", "broken" if failure.is_break else "error")
            self.broken = attempt.connection if failure.is_break and attempt.num_messages > 0 else None
        else:
            self.ordered.end("answered")

    def answer(self) -> ShadowAnswer | None:
        """Return the answer, whose capture the caller must drop. Without one, drop the capture and return None."""
        if self.ordered.ending == "answered":
            return ShadowAnswer(self._lane, self.usage, self.captured)
        self.captured.drop()
        return None

    async def _write(self, raw: bytes) -> None:
        if is_chunk(raw):
            self._num_chunks += 1
            if self._num_chunks > self.most_chunks or not self.captured.add(raw):
                raise ShadowTooLong

    def accepted(self, accepted: wire.Accepted) -> bytes:
        self._lane = accepted.lane
        return b""

    def first_chunk(self, num_tokens: int) -> None: ...

    def next_chunk(self, num_tokens: int) -> None: ...

    def finished(self, usage: wire.Usage) -> None:
        self.usage = usage


class _UncountedAttempt(ReplicaAttempt):
    __slots__ = ()

    def start(self) -> None:
        self.has_started = True
