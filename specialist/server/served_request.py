"""One request while a replica serves it: answer text, usage and wire messages."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from admission.forecast.bookings import Admit, Booking, DeadlineKind, Refuse
from octet.identity import Lane
from octet.rpc import refusal
from octet.rpc.refusal import Refusal
from octet.v1 import specialist_pb2 as wire
from specialist.scheduling.sequence import FinishReason, GuideExhausted, Request, SampledLogprobs, Sampling
from specialist.scheduling.step import Admitted, ConversationMissReason, Emitted, Finished
from specialist.text.prompt import Prompt, Structure, ToolCallFragment
from specialist.text.tokenization import Detokenizer, StopStrings
from specialist.text.tool_call_reader import CallReader
from specialist.text.tool_calls import ParsedText, merge_call_parts

_log = logging.getLogger(__name__)

TOKEN_BYTES = 8
LOGPROB_BYTES = 24


class Enqueued(NamedTuple):
    """The scheduler has accepted the request."""

    queue_position: int


class AnswerChunk(NamedTuple):
    """The part of an answer that is new since the last chunk."""

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[SampledLogprobs, ...] = ()
    calls: tuple[ToolCallFragment, ...] = ()
    embedding: tuple[float, ...] = ()

    @property
    def num_bytes(self) -> int:
        calls = sum(len(f"{part.call_id}{part.name}{part.arguments}".encode()) for part in self.calls)
        logprobs = sum(LOGPROB_BYTES * (1 + len(each.top)) for each in self.logprobs)
        numbers = len(self.tokens) + len(self.embedding)
        return len(self.text.encode()) + calls + TOKEN_BYTES * numbers + logprobs


NOTHING = AnswerChunk("")


class RequestUsage(NamedTuple):
    """How a request ended and what it cost. Times are in seconds; None for a phase that it did not reach."""

    reason: FinishReason
    stop_string: str | None
    prompt_tokens: int
    completion_tokens: int
    cache_hit_tokens: int
    miss_reason: ConversationMissReason
    times_preempted: int
    queued: float | None
    prefill: float | None
    decode: float | None
    total: float
    preempted: float | None = None  # seconds of prefill and decode during which the request was preempted
    drafted_tokens: int = 0  # tokens that steps guessed ahead
    accepted_tokens: int = 0  # those of them that were right
    is_guide_exhausted: bool = False  # whether it failed because its own structure could not be followed further


class PromptEmbedding:
    """Sums the final hidden states of a prompt while its chunks are computed. Written by the engine's thread."""

    def __init__(self, size: int) -> None:
        self._total = np.zeros(size)
        self._num_tokens = 0

    def begin(self, start: int, stop: int) -> NDArray[np.float64]:
        if start == 0:
            self._total[:] = 0.0
        elif start != self._num_tokens:
            raise ValueError(f"the chunk starts at token {start}, but {self._num_tokens} tokens were added")
        self._num_tokens = stop
        return self._total

    def normalized(self) -> list[float]:
        """Return the mean scaled to length 1, which the number of tokens does not affect."""
        length = float(np.linalg.norm(self._total))
        if not 0 < length < inf:
            raise ValueError(f"the hidden states add up to a vector of length {length}")
        return [float(value) for value in self._total / length]


RequestUpdate = Enqueued | AnswerChunk | Emitted | RequestUsage | Refusal
"""A request's updates: Enqueued, chunks and usage, in this order. A refusal may come at any point and is the last. If
only the length or a token can end an answer, its tokens come as the scheduler emitted them and become chunks later."""


class UpdateStream(Protocol):
    """Where a request's updates go. Used on the event loop, except `is_due`."""

    @property
    def is_due(self) -> bool:
        """Whether a chunk would be sent at once. Any thread may read it."""

    def put(self, update: RequestUpdate) -> None: ...


class AnswerText:
    """Detokenises one answer, up to its first stop string. A token that only completes a stop string is counted too."""

    def __init__(
        self, detokenizer: Detokenizer, stops: Sequence[str] = (), min_tokens: int = 0, reader: CallReader | None = None
    ) -> None:
        """`reader` separates tool calls from text; without it, all output is text."""
        self._reader = reader
        self.reads_calls = reader is not None
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops)
        self._min_tokens = min_tokens
        self.is_plain = not stops and reader is None  # whether text and tokens may be separated in larger pieces
        self.num_tokens = 0

    @property
    def stop_string(self) -> str | None:
        return self._stops.stop_string

    def push(self, tokens: Sequence[int], logprobs: Sequence[SampledLogprobs] = ()) -> AnswerChunk:
        """Return the new chunk. Tokens after a stop string are dropped."""
        if self.is_plain:
            self.num_tokens += len(tokens)
            return AnswerChunk(self._detokenizer.push(tokens), tuple(tokens), tuple(logprobs))
        text, num_taken = "", 0
        for token in tokens:
            if self._stops.stop_string is not None:
                break
            num_taken += 1
            self.num_tokens += 1
            text += self._pass_stops(self._detokenizer.push((token,)))
        parsed = ParsedText(text) if self._reader is None else self._reader.push(text)
        return AnswerChunk(parsed.text, tuple(tokens[:num_taken]), tuple(logprobs[:num_taken]), parsed.calls)

    def spell(self, token: int) -> bytes:
        """Return the bytes that a token writes; empty for a control token."""
        return self._detokenizer.spell(token)

    def finish(self) -> AnswerChunk:
        """Return the text and calls that were held back."""
        text = ""
        if self._stops.stop_string is None:
            text = self._pass_stops(self._detokenizer.finish()) + self._stops.finish()
        if self._reader is None:
            return AnswerChunk(text)
        read, rest = self._reader.push(text), self._reader.finish()
        return AnswerChunk(read.text + rest.text, calls=merge_call_parts((*read.calls, *rest.calls)))

    def _pass_stops(self, text: str) -> str:
        """Return the text that may be sent. Beyond the minimum length, possible stop strings are held back."""
        return text if self.num_tokens <= self._min_tokens else self._stops.push(text)[0]


@dataclass(slots=True, eq=False)
class ServedRequest:
    """One request in the replica. Validation creates it; every later stage adds its results."""

    caller_id: str  # the caller's id for the request; may be empty
    prompt: Prompt
    adapters: tuple[str, ...]  # names
    sampling: Sampling
    seed: int | None
    max_tokens: int
    context: int  # tokens, prompt and answer together
    stop: tuple[str, ...]
    ignore_eos: bool
    priority: int
    timeout: float | None  # seconds
    first_timeout: float | None  # seconds until the first token
    tenant_salt: bytes
    session_key: bytes = b""
    draft_window: int = 0
    shadow: bool = False
    structure: Structure | None = None
    embed: bool = False  # whether the caller wants the prompt's embedding instead of an answer
    place_for: str = ""  # for whom a place may be kept
    place: str = ""  # the key of the place that is kept for this request
    waits: float | None = None  # seconds for which the caller waits for a place; None if it wants none

    # Filled in by preparation.
    request: Request = field(init=False)  # its id is the replica's own, because ids of callers may repeat
    public_id: str = field(init=False)  # the caller's id, or a random one
    answer: AnswerText = field(init=False)
    release: Callable[[], None] = field(init=False)  # releases the adapters; called once
    booking: Booking = field(init=False)
    embedding: PromptEmbedding | None = None

    # Filled in by the service.
    stream: UpdateStream = field(init=False)
    admission: Admit | None = None
    trace_id: str = ""

    # Written by the engine's thread.
    _admitted_at: float | None = None
    _first_token_at: float | None = None
    num_emitted: int = 0  # tokens of a plain answer
    last_token_at: float | None = None
    only_counts: bool = False  # whether further tokens need only be counted, as `push_tokens` would
    _num_hit_tokens: int = 0
    _miss_reason: ConversationMissReason = ""
    _times_preempted: int = 0
    _preempted_at: float | None = None
    _preempted_since_token: float | None = None  # counts towards the time until the next token, if there is one
    _preempted_seconds: float | None = None

    @property
    def log_fields(self) -> dict[str, str]:
        return {"request_id": self.public_id, "trace_id": self.trace_id}

    def record_admission(self, event: Admitted, at: float) -> None:
        if self._admitted_at is None:
            self._admitted_at = at
            self._num_hit_tokens = event.num_hit_tokens
            self._miss_reason = event.miss_reason
        elif self._preempted_at is not None:
            self._preempted_since_token = (self._preempted_since_token or 0.0) + at - self._preempted_at
            self._preempted_at = None

    def record_preemption(self, at: float) -> None:
        self._times_preempted += 1
        self._preempted_at = at
        self.only_counts = False

    @property
    def has_begun(self) -> bool:
        """Whether it has its first token."""
        return self._first_token_at is not None

    def push_tokens(self, event: Emitted, now: float) -> AnswerChunk | Emitted:
        self.last_token_at = now
        if self._first_token_at is None:
            self._first_token_at = now
        if self._preempted_since_token is not None:
            self._preempted_seconds = (self._preempted_seconds or 0.0) + self._preempted_since_token
            self._preempted_since_token = None
        if self.embedding is not None:
            return NOTHING  # the sampled token is not wanted
        if self.answer.is_plain:
            self.num_emitted += len(event.tokens)
            self.only_counts = True
            return event
        return self.answer.push(event.tokens, event.logprobs)

    def finish_answer(self, event: Finished) -> AnswerChunk:
        """Return the rest of the answer: held-back text and calls, or the embedding. `decode` adds a plain one's."""
        if self.embedding is None:
            return NOTHING if self.answer.is_plain else self.answer.finish()
        is_complete = event.reason in ("stop", "length")
        return AnswerChunk("", embedding=tuple(self.embedding.normalized()) if is_complete else ())

    def usage(self, event: Finished, now: float) -> RequestUsage:
        """Return the usage. Call it after `finish_answer`, which may still find a stop string."""
        reason: FinishReason = event.reason
        if reason == "length" and (self.answer.stop_string is not None or self.embed):
            reason = "stop"
        return RequestUsage(
            reason=reason,
            stop_string=self.answer.stop_string,
            prompt_tokens=len(self.request.prompt),
            completion_tokens=self.num_emitted if self.answer.is_plain else self.answer.num_tokens,
            cache_hit_tokens=self._num_hit_tokens,
            miss_reason=self._miss_reason,
            times_preempted=self._times_preempted,
            queued=_seconds(self.request.arrival, self._admitted_at),
            prefill=_seconds(self._admitted_at, self._first_token_at),
            decode=_seconds(self._first_token_at, self.last_token_at),
            total=now - self.request.arrival,
            preempted=self._preempted_seconds,
            drafted_tokens=event.num_drafted,
            accepted_tokens=event.num_accepted,
            is_guide_exhausted=reason == "error" and event.detail.startswith(f"{GuideExhausted.__name__}:"),
        )

    def decode(self, updates: list[RequestUpdate]) -> list[Enqueued | AnswerChunk | RequestUsage | Refusal]:
        """Turn tokens into chunks, and add the rest of the text before the usage. If that fails, the request has
        failed."""
        try:
            return self._decode(updates)
        except Exception:
            _log.error("request %s failed", self.public_id, exc_info=True, extra=self.log_fields)
            return [refusal.engine_failed(self.public_id)]

    def _decode(self, updates: list[RequestUpdate]) -> list[Enqueued | AnswerChunk | RequestUsage | Refusal]:
        decoded: list[Enqueued | AnswerChunk | RequestUsage | Refusal] = []
        is_plain = self.answer.is_plain and self.embedding is None
        for update in updates:
            if isinstance(update, Emitted):
                decoded.append(self.answer.push(update.tokens, update.logprobs))
                continue
            if is_plain and isinstance(update, RequestUsage) and (rest := self.answer.finish()) != NOTHING:
                decoded.append(rest)
            decoded.append(update)
        return decoded

    def encode_tokens(self, tokens: list[int]) -> bytes:
        """Return the serialised event of further tokens of a plain answer: what `decode` and `to_wire` make of them."""
        event = wire.GenerateEvent()
        chunk = event.chunk
        chunk.text = self.answer.push(tokens).text
        chunk.token_ids.extend(tokens)
        return bytes(event.SerializeToString())

    def to_wire(self, update: Enqueued | AnswerChunk | RequestUsage) -> wire.GenerateEvent:
        if isinstance(update, AnswerChunk):
            return wire.GenerateEvent(chunk=_chunk(update, self.answer.spell))
        if isinstance(update, Enqueued):
            return wire.GenerateEvent(accepted=self._accepted(update.queue_position))
        return wire.GenerateEvent(usage=_usage(update))

    def _accepted(self, queue_position: int) -> wire.Accepted:
        request, admit, forecast = self.request, self.admission, None
        reserved = admit is not None and admit.reserved
        if admit is not None and admit.outlook is not None:
            displaced, set_aside = len(admit.displaced), len(admit.suspended)
            forecast = wire.Forecast(**asdict(admit.outlook), displaced=displaced, set_aside=set_aside)
        return wire.Accepted(
            request_id=self.public_id,
            lane=lane_to_wire(request.lane),
            prompt_tokens=len(request.prompt),
            queue_position=queue_position,
            max_tokens=request.max_tokens,
            seed=request.seed,
            forecast=forecast,
            reserved=reserved,
        )

    def failure(self, usage: RequestUsage, retry_after: Callable[[], float | None]) -> Refusal | None:
        """Return the error with which the call ends after its usage was sent; None if it ends with status OK."""
        match usage.reason:
            case "stop" | "length":
                return None
            case "deadline":
                is_first_next = self.request.first_deadline == self.request.nearest_deadline is not None
                is_first_late = is_first_next and not usage.completion_tokens
                return refusal.first_token_late() if is_first_late else refusal.deadline_exceeded()
            case "cancelled":
                return refusal.cancelled()
            case "error" if not usage.is_guide_exhausted:
                return refusal.engine_failed(self.public_id)
            case "error":  # the caller's own structure failed, so no other replica would do better
                field = "tools" if self.answer.reads_calls else "structure"
                limit = "cheap to enforce until the answer ends"
                return refusal.invalid_field(field, limit, "a form that became too costly")
            case "shed":
                return refusal.request_shed(retry_after())


def _seconds(start: float | None, stop: float | None) -> float | None:
    return None if start is None or stop is None else stop - start


_TIMINGS = ("queued", "prefill", "decode", "total", "preempted")
_TIMEOUTS: dict[DeadlineKind, str] = {"end": "timeout_ms", "first": "first_token_timeout_ms"}


def admission_refusal(refuse: Refuse, max_waiting: int) -> Refusal:
    forecast = refuse.limit, refuse.arithmetic, refuse.retry_after
    match refuse.reason:
        case "deadline_unreachable":
            return refusal.deadline_unreachable(_TIMEOUTS[refuse.deadline], *forecast)
        case "would_delay_others":
            return refusal.would_delay_others(*forecast)
        case "queue_full":
            return refusal.queue_full("waiting", max_waiting, refuse.retry_after)


def lane_to_wire(lane: Lane) -> wire.Lane:
    return wire.Lane(specialist=lane.specialist, revision=lane.revision, adapter_digests=lane.adapters)


def _chunk(chunk: AnswerChunk, spell: Callable[[int], bytes]) -> wire.Chunk:
    """Build the message. Token texts are sent only with log probabilities."""
    if not (chunk.logprobs or chunk.calls or chunk.embedding):
        return wire.Chunk(text=chunk.text, token_ids=chunk.tokens)
    each = zip(chunk.tokens, chunk.logprobs, strict=False)
    logprobs = [_logprobs(token, likely, spell) for token, likely in each]
    calls = [
        wire.ToolCallPart(index=part.index, id=part.call_id, name=part.name, arguments=part.arguments)
        for part in chunk.calls
    ]
    embedding = chunk.embedding
    return wire.Chunk(text=chunk.text, token_ids=chunk.tokens, logprobs=logprobs, tool_calls=calls, embedding=embedding)


def _logprobs(chosen: int, logprobs: SampledLogprobs, spell: Callable[[int], bytes]) -> wire.TokenLogprobs:
    top = [wire.TokenLogprob(token=token, logprob=logprob, piece=spell(token)) for token, logprob in logprobs.top]
    return wire.TokenLogprobs(chosen=logprobs.chosen, top=top, piece=spell(chosen))


def _usage(usage: RequestUsage) -> wire.Usage:
    miss_reason = usage.miss_reason.upper() or "UNSPECIFIED"
    return wire.Usage(
        finish_reason=wire.FinishReason.Value(f"FINISH_REASON_{usage.reason.upper()}"),
        stop_string=usage.stop_string,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cache_hit_tokens=usage.cache_hit_tokens,
        miss_reason=wire.MissReason.Value(f"MISS_REASON_{miss_reason}"),
        times_preempted=usage.times_preempted,
        drafted_tokens=usage.drafted_tokens,
        accepted_tokens=usage.accepted_tokens,
        timings=wire.Timings(**{name: getattr(usage, name) for name in _TIMINGS}),
    )
