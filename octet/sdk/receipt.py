"""Everything about one request that somebody may want to know afterwards."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from octet.sdk.decision import Decision, Score, word
from octet.v1 import inference_pb2 as proto

__all__ = [
    "Admission",
    "Attempt",
    "Between",
    "ErrorDetails",
    "Forecast",
    "Lane",
    "Receipt",
    "ReplicaTimings",
    "Shadow",
    "Timings",
    "Usage",
    "Validation",
    "error_from",
    "word",
]


@dataclass(frozen=True, slots=True)
class Lane:
    """What computed: digests of content, sha256 in hex."""

    specialist: str
    revision: str
    adapter_digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One replica was asked."""

    specialist: str
    replica: str
    reason: str
    """Empty: it answered."""
    message: str
    seconds: float
    began: float
    """Since the request reached the router."""
    span_id: str
    """What the replica was told of the trace; empty where the request is not traced."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What the replica's door said."""

    prompt_tokens: int
    queue_position: int
    max_tokens: int
    seed: int
    forecast: "Forecast | None" = None
    """None: nothing had been measured."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the replica expected when it accepted. Seconds from then."""

    wait: float
    total: float
    slack: float | None
    """Left before the deadline."""
    displaced: int
    """Requests of lower priority that were shed for it."""
    set_aside: int = 0
    """Requests of lower priority that have the time to wait for it."""


@dataclass(frozen=True, slots=True)
class Shadow:
    """A copy that nobody waits for."""

    specialist: str
    adapters: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Between:
    """What stood between the decision and the replica."""

    correctness: str
    """Of the breaker of the decision's primary."""
    instead_of: str
    """The specialist that the decision named, where another was to answer in its place."""
    why: str
    lane: str
    shadow: Shadow | None
    shadow_threshold: float
    priority_floor: int
    knobs_by: str
    spilled: bool
    """The second choice answered, because the primary had no room."""
    lead: str
    """Who was to be asked before anybody else, where it is not the decision's primary."""


@dataclass(frozen=True, slots=True)
class ReplicaTimings:
    """Seconds; None where the request never came that far."""

    queued: float | None
    prefill: float | None
    decode: float | None
    total: float
    preempted: float | None = None
    """Of prefill and decode: it had given way, and waited to run again."""


@dataclass(frozen=True, slots=True)
class Usage:
    finish_reason: str
    stop_string: str | None
    prompt_tokens: int
    completion_tokens: int
    cache_hit_tokens: int
    """Prompt tokens that were reused."""
    miss_reason: str
    """Why the conversation's beginning was not; empty when everything was that could be."""
    times_preempted: int
    timings: ReplicaTimings

    @property
    def tokens_per_second(self) -> float | None:
        """From the first token to the last; None for fewer than two."""
        if self.completion_tokens < 2 or not self.timings.decode:
            return None
        return (self.completion_tokens - 1) / self.timings.decode


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds since the request reached the router; None where it never came that far."""

    decided: float | None
    dispatched: float | None
    accepted: float | None
    first_chunk: float | None
    total: float
    answered: float | None
    """The replica had said everything; what follows until `total` is the verdict that was asked for."""


@dataclass(frozen=True, slots=True)
class ErrorDetails:
    reason: str
    field: str
    limit: str
    value: str
    message: str
    retry_after: float | None


@dataclass(frozen=True, slots=True)
class Validation:
    """What the verifier made of the whole answer."""

    verifier: str
    outcome: str
    """passed, failed, or skipped where nothing could be said."""
    detail: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Receipt:
    request_id: str
    decision: Decision
    specialist: str
    """Who answered: the primary, or the second choice where the attempts say why. Empty: nobody has."""
    replica: str
    lane: Lane
    attempts: tuple[Attempt, ...]
    admission: Admission | None
    """None: no replica has accepted it."""
    usage: Usage | None
    timings: Timings
    error: ErrorDetails | None
    breaker: str
    """State of the replica's health breaker when it was chosen."""
    trace_id: str
    created_unix_ms: int
    priority: int
    session_id: str
    session_source: str
    """Where the conversation's key came from: session_id, metadata, user, or none."""
    between: Between | None
    """None: it never came that far."""
    validation: Validation | None
    """None: nobody asked for it."""
    caller: str
    """The name of the key that was shown, and whose it is; both empty where none is asked for."""
    tenant: str
    span_id: str
    """W3C id of the router's own span; empty where the request is not traced."""
    wire: proto.Receipt = field(repr=False, compare=False)
    """The message itself."""

    @property
    def why(self) -> str:
        return self.decision.why

    @property
    def distribution(self) -> tuple[Score, ...]:
        return self.decision.distribution

    @property
    def adapters(self) -> tuple[str, ...]:
        """Digests of those that took part in the answer, in the order they were applied."""
        return self.lane.adapter_digests

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self) if each.name != "wire"}

    @classmethod
    def from_wire(cls, message: proto.Receipt) -> "Receipt":
        return cls(
            request_id=message.request_id,
            decision=Decision.from_wire(message.decision),
            specialist=message.specialist,
            replica=message.replica,
            lane=_lane(message.lane),
            attempts=tuple(_attempt(each) for each in message.attempts),
            admission=_admission(message.accepted) if message.HasField("accepted") else None,
            usage=_usage(message.usage) if message.HasField("usage") else None,
            timings=_timings(message.timings),
            error=error_from(message.error) if message.HasField("error") else None,
            breaker=message.breaker,
            trace_id=message.trace_id,
            created_unix_ms=message.created_unix_ms,
            priority=message.priority,
            session_id=message.session_id,
            session_source=message.session_source,
            between=_between(message.between) if message.HasField("between") else None,
            validation=_validation(message.validation) if message.HasField("validation") else None,
            caller=message.caller,
            tenant=message.tenant,
            span_id=message.span_id,
            wire=message,
        )


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value


def _optional(message: Any, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None


def _lane(message: proto.Lane) -> Lane:
    return Lane(message.specialist, message.revision, tuple(message.adapter_digests))


def _attempt(message: proto.Attempt) -> Attempt:
    reason = word(proto.ErrorReason, message.reason, "ERROR_REASON_")
    return Attempt(
        message.specialist,
        message.replica,
        reason,
        message.message,
        message.seconds,
        message.began,
        message.span_id,
    )


def _admission(message: proto.Accepted) -> Admission:
    forecast = None
    if message.HasField("forecast"):
        said = message.forecast
        forecast = Forecast(said.wait, said.total, _optional(said, "slack"), said.displaced, said.set_aside)
    return Admission(message.prompt_tokens, message.queue_position, message.max_tokens, message.seed, forecast)


def _between(message: proto.Between) -> Between:
    said = message.shadow
    return Between(
        correctness=message.correctness,
        instead_of=message.instead_of,
        why=message.why,
        lane=message.lane,
        shadow=Shadow(said.specialist, tuple(said.adapters), said.why) if message.HasField("shadow") else None,
        shadow_threshold=message.shadow_threshold,
        priority_floor=message.priority_floor,
        knobs_by=message.knobs_by,
        spilled=message.spilled,
        lead=message.lead,
    )


def _usage(message: proto.Usage) -> Usage:
    timings = message.timings
    return Usage(
        finish_reason=word(proto.FinishReason, message.finish_reason, "FINISH_REASON_"),
        stop_string=_optional(message, "stop_string"),
        prompt_tokens=message.prompt_tokens,
        completion_tokens=message.completion_tokens,
        cache_hit_tokens=message.cache_hit_tokens,
        miss_reason=word(proto.MissReason, message.miss_reason, "MISS_REASON_"),
        times_preempted=message.times_preempted,
        timings=ReplicaTimings(
            queued=_optional(timings, "queued"),
            prefill=_optional(timings, "prefill"),
            decode=_optional(timings, "decode"),
            total=timings.total,
            preempted=_optional(timings, "preempted"),
        ),
    )


def _validation(message: proto.Validation) -> Validation:
    return Validation(message.verifier, message.outcome, message.detail, message.seconds)


def _timings(message: proto.RouterTimings) -> Timings:
    return Timings(
        decided=_optional(message, "decided"),
        dispatched=_optional(message, "dispatched"),
        accepted=_optional(message, "accepted"),
        first_chunk=_optional(message, "first_chunk"),
        total=message.total,
        answered=_optional(message, "answered"),
    )


def error_from(message: proto.Error) -> ErrorDetails:
    reason = word(proto.ErrorReason, message.reason, "ERROR_REASON_")
    after = message.retry_after_ms / 1000 if message.HasField("retry_after_ms") else None
    return ErrorDetails(reason, message.field, message.limit, message.value, message.message, after)
