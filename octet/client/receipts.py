"""Receipts: the complete record of one request. The records of its parts are in records.py."""

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any

from octet.client import records
from octet.client.wire_record import WireRecord
from octet.v1 import inference_pb2 as proto


def _sampling(message: proto.Decision) -> dict[str, Any]:
    found = {each.name: value for each, value in message.sampling.ListFields()}
    if "logit_bias" in found:
        found["logit_bias"] = {str(each.token): each.bias for each in message.sampling.logit_bias}
    return found


class DecisionInfo(WireRecord):
    """The routing decision. Deterministic: the same request, configuration and classifier give the same decision."""

    READERS = MappingProxyType({"sampling": _sampling})

    source: str  # forced, intent, rule, classifier, default or bare; empty if no specialist should answer
    decided_by: str  # the name of the rule or intent, or the classifier's digest
    why: str
    primary: str  # empty if no specialist should answer
    second_choice: str
    distribution: tuple[records.SpecialistScore, ...]
    """The most likely first, including "reject"; empty if the classifier did not run."""
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
    max_tokens_from: str  # what set max_tokens: caller, task or specialist


class Admission(WireRecord):
    prompt_tokens: int
    queue_position: int
    max_tokens: int
    seed: int
    reserved: bool  # whether the request took a place that a ticket had reserved
    forecast: records.ForecastInfo | None = None  # None if no rate had been measured


class Usage(WireRecord):
    finish_reason: str
    stop_string: str | None
    prompt_tokens: int
    completion_tokens: int
    cache_hit_tokens: int  # prompt tokens found in the prefix cache
    miss_reason: str  # why the conversation's prefix was not reused; empty if as much as possible was
    times_preempted: int
    drafted_tokens: int  # tokens that steps guessed ahead
    accepted_tokens: int  # those of them that were right
    timings: records.ReplicaTimings

    @property
    def tokens_per_second(self) -> float | None:
        """The rate from the first token to the last; None for fewer than two tokens."""
        if self.completion_tokens < 2 or not self.timings.decode:
            return None
        return (self.completion_tokens - 1) / self.timings.decode


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


def _admission(message: proto.Receipt) -> Admission | None:
    return Admission.from_wire(message.accepted) if message.HasField("accepted") else None


class Receipt(WireRecord):
    READERS = MappingProxyType({"admission": _admission, "wire": lambda message: message})

    request_id: str
    decision: DecisionInfo
    specialist: str
    """The specialist that answered: the primary or the second choice (the attempts show why); empty if none did."""
    experts_used: tuple[str, ...]  # the specialist and its adapters, in order; empty for a bare model
    replica: str
    lane: records.LaneIdentity
    attempts: tuple[records.AttemptInfo, ...]
    admission: Admission | None  # None if no replica has accepted the request
    usage: Usage | None
    timings: records.Timings
    error: ErrorDetails | None
    breaker: str  # state of the replica's health breaker when it was chosen
    trace_id: str
    created_unix_ms: int
    priority: int
    session_id: str
    session_source: str  # source of the session id: session_id, metadata, user, or none
    between: records.Between | None  # None if the request was not dispatched
    validation: records.Validation | None  # None unless the request asked for validation
    caller: str  # name and tenant of the API key; both empty if the router requires no keys
    tenant: str
    span_id: str  # W3C id of the router's span; empty if the request is not traced
    wire: proto.Receipt = field(repr=False, compare=False)  # the message itself

    @property
    def why(self) -> str:
        return self.decision.why

    @property
    def distribution(self) -> tuple[records.SpecialistScore, ...]:
        return self.decision.distribution

    @property
    def latency_ms(self) -> int:
        """The time from the request's arrival at the router to its end, in whole milliseconds."""
        return round(self.timings.total * 1000)

    @property
    def adapters(self) -> tuple[str, ...]:
        """Return the digests of the answer's adapters, in the order in which they were applied."""
        return self.lane.adapter_digests
