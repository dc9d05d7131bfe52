"""Answers captured while they stream, within a byte budget, for later evaluation."""

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, Protocol

from google.protobuf.message import DecodeError

from octet.v1 import inference_pb2 as wire
from octet.v1 import operator_pb2 as operator_wire
from octet.v1 import specialist_pb2 as specialist_wire
from router.routing.dispatch_plan import Candidate, ShadowOrder
from router.verify.verdict import Outcome

_CHUNK_TAG = b"\x12"  # first byte of an event with a chunk, from a replica or a router
_CHUNK_OVERHEAD = 4  # bytes that store where a chunk ends
_RAW_PER_TEXT = 8  # a one-token chunk takes four to eight times as many bytes as its text, overhead included
_FIXED_OVERHEAD = 1024


class ByteBudget:
    """Limits the bytes held at the same time. Used only on the event loop. Every successful `take` needs a `give`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0

    def take(self, num_bytes: int) -> bool:
        """Take the bytes if they are free; otherwise take nothing and return False."""
        if self.taken + num_bytes > self.most:
            return False
        self.taken += num_bytes
        return True

    def give(self, num_bytes: int) -> None:
        self.taken -= num_bytes


class CapturedAnswer:
    """The raw chunk events of one answer. An answer that is too long, or exceeds the byte budget, is dropped as a
    whole. Used only on the event loop, except for `text`."""

    __slots__ = ("_budget", "_ends", "_most_raw", "_most_text", "_raw", "is_whole", "num_bytes")

    def __init__(self, budget: ByteBudget, most_text: int) -> None:
        """`most_text` limits the decoded text, in bytes of UTF-8."""
        self._budget = budget
        self._most_text = most_text
        self._most_raw = most_text * _RAW_PER_TEXT + _FIXED_OVERHEAD
        self._raw = bytearray()
        self._ends = array("I")
        self.num_bytes = 0
        self.is_whole = True

    def add(self, raw: bytes) -> bool:
        """Append a chunk event. Return False if the answer has been dropped, by this call or earlier."""
        weight = len(raw) + _CHUNK_OVERHEAD
        if not self.is_whole or self.num_bytes + weight > self._most_raw or not self._budget.take(weight):
            self.drop()
            return False
        self.num_bytes += weight
        self._raw += raw
        self._ends.append(len(self._raw))
        return True

    def text(self) -> str | None:
        """Return the text; None if the answer was dropped, or is malformed or too long. May be called on any thread."""
        raw, ends, is_whole = bytes(self._raw), self._ends, self.is_whole
        if not is_whole:
            return None
        try:
            text = "".join(
                specialist_wire.GenerateEvent.FromString(raw[start:end]).chunk.text
                for start, end in pairwise((0, *ends))
            )
        except DecodeError:
            return None
        return text if len(text.encode()) <= self._most_text else None

    def drop(self) -> None:
        """Discard the answer and return its bytes to the budget."""
        self.is_whole = False
        self._raw, self._ends = bytearray(), array("I")  # new objects: `text` may be reading the old ones
        self._budget.give(self.num_bytes)
        self.num_bytes = 0


def is_chunk(raw: bytes) -> bool:
    return raw[:1] == _CHUNK_TAG


@dataclass(frozen=True, slots=True)
class FinishedAnswer:
    """An answer that a caller received, or abandoned: then it ends where the caller left."""

    receipt: wire.Receipt
    question: str
    captured: CapturedAnswer
    candidate: Candidate
    is_sample: bool  # whether the verdict counts for the candidate's lane
    structure: specialist_wire.Structure | None = None  # the one that the caller asked for
    ignores_end: bool = False  # whether the caller made the model go on where it would have ended

    def is_forced(self, *, is_cut: bool) -> bool:
        """Whether the caller may have forced the text. A regular expression or a choice may force any repetition, and
        so may a JSON Schema; but most schemas do not, so that an answer that loops until it is cut does show a lane."""
        kind = None if self.structure is None else self.structure.WhichOneof("kind")
        return self.ignores_end or kind in ("regex", "choice") or (kind == "json_schema" and not is_cut)


@dataclass(frozen=True, slots=True)
class ShadowAnswer:
    lane: wire.Lane
    usage: wire.Usage
    captured: CapturedAnswer


CancelReason = Literal["cancelled", "displaced", "closed"]


class ShadowHandle:
    """The handle of a shadow that was sent. Its owner gets the answer through `when_done`, or cancels the shadow."""

    __slots__ = ("_answer", "_callback", "_end", "_is_cancelled", "done", "order")

    def __init__(self, order: ShadowOrder, end: Callable[[CancelReason], object]) -> None:
        """`end` is called to stop a shadow that is still running."""
        self.order = order
        self.done = False
        self._end = end
        self._is_cancelled = False
        self._answer: ShadowAnswer | None = None
        self._callback: Callable[[ShadowAnswer | None], None] | None = None

    def when_done(self, callback: Callable[[ShadowAnswer | None], None]) -> None:
        """Pass the answer to `callback` when the shadow is done. The callback must drop `answer.captured`."""
        if self.done:
            answer, self._answer = self._answer, None
            callback(answer)
        else:
            self._callback = callback

    def cancel(self, reason: CancelReason = "cancelled") -> None:
        self._is_cancelled = True
        if self.done:
            self._discard(self._answer)
        else:
            self._end(reason)

    def finish(self, answer: ShadowAnswer | None) -> None:
        """Mark the shadow as done. `answer` is None if the shadow gave no answer."""
        self.done = True
        if self._is_cancelled:
            self._discard(answer)
            answer = None
        callback, self._callback = self._callback, None
        if callback is None:
            self._answer = answer
        else:
            callback(answer)

    def _discard(self, answer: ShadowAnswer | None) -> None:
        self._answer = None
        if answer is not None:
            answer.captured.drop()


JudgementKind = Literal["verifier", "cut", "degenerate"]
"""What gave the verdict: the verifier, the verifier on the complete part of a cut answer, or the check of its text."""


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """The verdict on one answer, and what it shows about its lane."""

    outcome: Outcome
    kind: JudgementKind
    why: str = ""
    tenant: str = ""  # owns the request
    question: str = ""
    signals: Mapping[str, bool] = field(default_factory=dict)  # by signal of a collapse: whether the answer is bad


class EvaluationListener(Protocol):
    """Is notified of evaluation results, on the event loop. Implementations must return quickly."""

    def lane_judged(self, lane_id: str, specialist: str, judged: JudgedAnswer) -> None:
        """Called when an answer from the lane has been judged, even if the outcome is inconclusive."""

    def lane_evaluated(self, lane_id: str, specialist: str, outcome: Outcome, verifier: str) -> None:
        """Called when an answer from the lane has passed or failed. `verifier` is the name of the one that decided."""

    def answer_evaluated(self, receipt: wire.Receipt, judged: JudgedAnswer) -> None:
        """Called when a sampled answer to a caller has been judged."""

    def compared(self, comparison: operator_wire.Comparison, tenant: str, question: str) -> None:
        """Called when a request's answer has been compared with its shadow's. `tenant` owns the request."""
