"""Receipts: the complete record of one request."""

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any

from octet.client.wire_record import WireRecord
from octet.v1 import inference_pb2 as proto


class SpecialistScore(WireRecord):
    specialist: str
    probability: float


def _sampling(message: proto.Decision) -> dict[str, Any]:
    found = {each.name: value for each, value in message.sampling.ListFields()}
    if "logit_bias" in found:
        found["logit_bias"] = {str(each.token): each.bias for each in message.sampling.logit_bias}
    return found


class DecisionInfo(WireRecord):
    """The routing decision. Deterministic: the same request, configuration and classifier give the same decision."""

    READERS = MappingProxyType({"sampling": _sampling})

    source: str  # forced, intent, rule, classifier or default; empty if no specialist should answer
    decided_by: str  # the name of the rule or intent, or the classifier's digest
    why: str
    primary: str  # empty if no specialist should answer
    second_choice: str
    distribution: tuple[SpecialistScore, ...]
    """Most likely first, including "reject"; empty if the classifier did not run."""
    confidence: float | None
    intent: str
    task: str
    adapters: tuple[str, ...]  # names
    sampling: Mapping[str, Any] = field(hash=False)  # only the parameters that are set
    max_tokens: int
    notes: tuple[str, ...]
    request_digest: str
    config_digest: str
    classifier_digest: str


class LaneIdentity(WireRecord):
    """Identifies the model and adapters behind the answer by hex sha256 digests of the content."""

    specialist: str
    revision: str
    adapter_digests: tuple[str, ...]


class AttemptInfo(WireRecord):
    specialist: str
    replica: str
    reason: str  # empty if the replica answered
    message: str
    seconds: float
    began: float  # seconds since the request arrived at the router
    span_id: str  # W3C span id that was sent to the replica; empty if the request is not traced


class ForecastInfo(WireRecord):
    """The replica's forecast when it accepted the request, in seconds from then."""

    wait: float
    total: float
    slack: float | None  # time left before the deadline
    displaced: int  # number of lower-priority requests that were shed for this one
    set_aside: int = 0  # number of lower-priority requests that were suspended for this one


class Admission(WireRecord):
    prompt_tokens: int
    queue_position: int
    max_tokens: int
    seed: int
    forecast: ForecastInfo | None = None  # None if no rate had been measured


class Shadow(WireRecord):
    specialist: str
    adapters: tuple[str, ...]
    why: str


class Between(WireRecord):
    """State of breakers, lanes, knobs and shadows when the request was dispatched."""

    correctness: str  # state of the correctness breaker of the decision's primary
    instead_of: str  # the specialist named by the decision, if another one was to answer
    why: str
    lane: str
    shadow: Shadow | None
    shadow_threshold: float
    priority_floor: int
    knobs_by: str
    spilled: bool  # the second choice answered because the primary had no capacity
    lead: str  # the specialist to try first, if it is not the decision's primary


class ReplicaTimings(WireRecord):
    """Times in seconds; None for stages that the request did not reach."""

    queued: float | None
    prefill: float | None
    decode: float | None
    total: float
    preempted: float | None = None  # the part of prefill and decode during which the request was preempted


class Usage(WireRecord):
    finish_reason: str
    stop_string: str | None
    prompt_tokens: int
    completion_tokens: int
    cache_hit_tokens: int  # prompt tokens found in the prefix cache
    miss_reason: str  # why the conversation's prefix was not reused; empty if everything reusable was
    times_preempted: int
    timings: ReplicaTimings

    @property
    def tokens_per_second(self) -> float | None:
        """Returns the rate from the first token to the last; None for fewer than two tokens."""
        if self.completion_tokens < 2 or not self.timings.decode:
            return None
        return (self.completion_tokens - 1) / self.timings.decode


class Timings(WireRecord):
    """Seconds since the request arrived at the router; None for stages that it did not reach."""

    decided: float | None
    dispatched: float | None
    accepted: float | None
    first_chunk: float | None
    total: float
    answered: float | None
    """The replica had sent its whole answer. The time from here to `total` is the requested validation."""


def retry_after_seconds(error: proto.Error) -> float | None:
    return error.retry_after_ms / 1000 if error.HasField("retry_after_ms") else None


class ErrorDetails(WireRecord):
    READERS = MappingProxyType({"retry_after": retry_after_seconds})

    reason: str
    field: str
    limit: str
    value: str
    message: str
    retry_after: float | None


class Validation(WireRecord):
    verifier: str
    outcome: str  # passed, failed, or skipped if the verifier could not decide
    detail: str
    seconds: float


def _admission(message: proto.Receipt) -> Admission | None:
    return Admission.from_wire(message.accepted) if message.HasField("accepted") else None


class Receipt(WireRecord):
    READERS = MappingProxyType({"admission": _admission, "wire": lambda message: message})

    request_id: str
    decision: DecisionInfo
    specialist: str
    """The specialist that answered: the primary, or the second choice (the attempts show why). Empty if none did."""
    replica: str
    lane: LaneIdentity
    attempts: tuple[AttemptInfo, ...]
    admission: Admission | None  # None if no replica has accepted the request
    usage: Usage | None
    timings: Timings
    error: ErrorDetails | None
    breaker: str  # state of the replica's health breaker when it was chosen
    trace_id: str
    created_unix_ms: int
    priority: int
    session_id: str
    session_source: str  # source of the session id: session_id, metadata, user, or none
    between: Between | None  # None if the request was not dispatched
    validation: Validation | None  # None unless the request asked for validation
    caller: str  # name and tenant of the API key; both empty if the router requires no keys
    tenant: str
    span_id: str  # W3C id of the router's span; empty if the request is not traced
    wire: proto.Receipt = field(repr=False, compare=False)  # the message itself

    @property
    def why(self) -> str:
        return self.decision.why

    @property
    def distribution(self) -> tuple[SpecialistScore, ...]:
        return self.decision.distribution

    @property
    def adapters(self) -> tuple[str, ...]:
        """Returns the digests of the answer's adapters, in the order they were applied."""
        return self.lane.adapter_digests
