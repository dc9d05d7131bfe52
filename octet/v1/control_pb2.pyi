from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BreakerInfo(_message.Message):
    __slots__ = ("specialist", "lane", "adapters", "lane_status", "state", "hold", "hold_by", "hold_why", "since_unix_ms", "pass_rate", "samples", "floor", "min_samples", "window_seconds", "fallback", "outlook", "verifier", "collapse", "suspicion", "floor_learned", "verifiers", "is_last_resort")
    SPECIALIST_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    LANE_STATUS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    HOLD_BY_FIELD_NUMBER: _ClassVar[int]
    HOLD_WHY_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    PASS_RATE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    MIN_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    WINDOW_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    OUTLOOK_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    COLLAPSE_FIELD_NUMBER: _ClassVar[int]
    SUSPICION_FIELD_NUMBER: _ClassVar[int]
    FLOOR_LEARNED_FIELD_NUMBER: _ClassVar[int]
    VERIFIERS_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_RESORT_FIELD_NUMBER: _ClassVar[int]
    specialist: str
    lane: int
    adapters: _containers.RepeatedScalarFieldContainer[str]
    lane_status: str
    state: str
    hold: str
    hold_by: str
    hold_why: str
    since_unix_ms: int
    pass_rate: float
    samples: int
    floor: float
    min_samples: int
    window_seconds: float
    fallback: str
    outlook: str
    verifier: str
    collapse: str
    suspicion: str
    floor_learned: bool
    verifiers: _containers.RepeatedCompositeFieldContainer[VerifierStanding]
    is_last_resort: bool
    def __init__(self, specialist: _Optional[str] = ..., lane: _Optional[int] = ..., adapters: _Optional[_Iterable[str]] = ..., lane_status: _Optional[str] = ..., state: _Optional[str] = ..., hold: _Optional[str] = ..., hold_by: _Optional[str] = ..., hold_why: _Optional[str] = ..., since_unix_ms: _Optional[int] = ..., pass_rate: _Optional[float] = ..., samples: _Optional[int] = ..., floor: _Optional[float] = ..., min_samples: _Optional[int] = ..., window_seconds: _Optional[float] = ..., fallback: _Optional[str] = ..., outlook: _Optional[str] = ..., verifier: _Optional[str] = ..., collapse: _Optional[str] = ..., suspicion: _Optional[str] = ..., floor_learned: _Optional[bool] = ..., verifiers: _Optional[_Iterable[_Union[VerifierStanding, _Mapping]]] = ..., is_last_resort: _Optional[bool] = ...) -> None: ...

class VerifierStanding(_message.Message):
    __slots__ = ("verifier", "pass_rate", "samples", "floor", "floor_learned")
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    PASS_RATE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    FLOOR_LEARNED_FIELD_NUMBER: _ClassVar[int]
    verifier: str
    pass_rate: float
    samples: int
    floor: float
    floor_learned: bool
    def __init__(self, verifier: _Optional[str] = ..., pass_rate: _Optional[float] = ..., samples: _Optional[int] = ..., floor: _Optional[float] = ..., floor_learned: _Optional[bool] = ...) -> None: ...

class KnobInfo(_message.Message):
    __slots__ = ("name", "value", "configured", "set_by", "why", "since_unix_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    CONFIGURED_FIELD_NUMBER: _ClassVar[int]
    SET_BY_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    configured: float
    set_by: str
    why: str
    since_unix_ms: int
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ..., configured: _Optional[float] = ..., set_by: _Optional[str] = ..., why: _Optional[str] = ..., since_unix_ms: _Optional[int] = ...) -> None: ...

class LaneInfo(_message.Message):
    __slots__ = ("specialist", "number", "adapter", "digests", "revision", "status", "since_unix_ms", "by", "why", "pass_rate", "samples", "outlook", "resident", "replicas", "suspicion", "model")
    SPECIALIST_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    PASS_RATE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    OUTLOOK_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    SUSPICION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    specialist: str
    number: int
    adapter: str
    digests: _containers.RepeatedScalarFieldContainer[str]
    revision: str
    status: str
    since_unix_ms: int
    by: str
    why: str
    pass_rate: float
    samples: int
    outlook: str
    resident: int
    replicas: int
    suspicion: str
    model: str
    def __init__(self, specialist: _Optional[str] = ..., number: _Optional[int] = ..., adapter: _Optional[str] = ..., digests: _Optional[_Iterable[str]] = ..., revision: _Optional[str] = ..., status: _Optional[str] = ..., since_unix_ms: _Optional[int] = ..., by: _Optional[str] = ..., why: _Optional[str] = ..., pass_rate: _Optional[float] = ..., samples: _Optional[int] = ..., outlook: _Optional[str] = ..., resident: _Optional[int] = ..., replicas: _Optional[int] = ..., suspicion: _Optional[str] = ..., model: _Optional[str] = ...) -> None: ...

class ReplicaInfo(_message.Message):
    __slots__ = ("name", "specialist", "address", "status", "health_breaker", "waiting", "running", "shadows", "revision", "refusing", "usual_wait", "estimate_error_p90", "restarts", "last_restart_reason", "last_restart_unix_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SPECIALIST_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    HEALTH_BREAKER_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    SHADOWS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    REFUSING_FIELD_NUMBER: _ClassVar[int]
    USUAL_WAIT_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_ERROR_P90_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    LAST_RESTART_REASON_FIELD_NUMBER: _ClassVar[int]
    LAST_RESTART_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    specialist: str
    address: str
    status: str
    health_breaker: str
    waiting: int
    running: int
    shadows: int
    revision: str
    refusing: bool
    usual_wait: float
    estimate_error_p90: float
    restarts: int
    last_restart_reason: str
    last_restart_unix_ms: int
    def __init__(self, name: _Optional[str] = ..., specialist: _Optional[str] = ..., address: _Optional[str] = ..., status: _Optional[str] = ..., health_breaker: _Optional[str] = ..., waiting: _Optional[int] = ..., running: _Optional[int] = ..., shadows: _Optional[int] = ..., revision: _Optional[str] = ..., refusing: _Optional[bool] = ..., usual_wait: _Optional[float] = ..., estimate_error_p90: _Optional[float] = ..., restarts: _Optional[int] = ..., last_restart_reason: _Optional[str] = ..., last_restart_unix_ms: _Optional[int] = ...) -> None: ...

class ShadowCounts(_message.Message):
    __slots__ = ("ordered", "sent", "answered", "shed", "failed", "compared", "reasons")
    ORDERED_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    SHED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    COMPARED_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    ordered: int
    sent: int
    answered: int
    shed: int
    failed: int
    compared: int
    reasons: _containers.RepeatedCompositeFieldContainer[ShadowReasonCount]
    def __init__(self, ordered: _Optional[int] = ..., sent: _Optional[int] = ..., answered: _Optional[int] = ..., shed: _Optional[int] = ..., failed: _Optional[int] = ..., compared: _Optional[int] = ..., reasons: _Optional[_Iterable[_Union[ShadowReasonCount, _Mapping]]] = ...) -> None: ...

class ShadowReasonCount(_message.Message):
    __slots__ = ("outcome", "reason", "count")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    outcome: str
    reason: str
    count: int
    def __init__(self, outcome: _Optional[str] = ..., reason: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class ShadowRow(_message.Message):
    __slots__ = ("intent", "primary", "shadow", "why", "compared", "verified", "primary_passed", "shadow_passed", "only_primary_passed", "only_shadow_passed", "agreed", "mean_similarity")
    INTENT_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    COMPARED_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_PASSED_FIELD_NUMBER: _ClassVar[int]
    SHADOW_PASSED_FIELD_NUMBER: _ClassVar[int]
    ONLY_PRIMARY_PASSED_FIELD_NUMBER: _ClassVar[int]
    ONLY_SHADOW_PASSED_FIELD_NUMBER: _ClassVar[int]
    AGREED_FIELD_NUMBER: _ClassVar[int]
    MEAN_SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    intent: str
    primary: str
    shadow: str
    why: str
    compared: int
    verified: int
    primary_passed: int
    shadow_passed: int
    only_primary_passed: int
    only_shadow_passed: int
    agreed: int
    mean_similarity: float
    def __init__(self, intent: _Optional[str] = ..., primary: _Optional[str] = ..., shadow: _Optional[str] = ..., why: _Optional[str] = ..., compared: _Optional[int] = ..., verified: _Optional[int] = ..., primary_passed: _Optional[int] = ..., shadow_passed: _Optional[int] = ..., only_primary_passed: _Optional[int] = ..., only_shadow_passed: _Optional[int] = ..., agreed: _Optional[int] = ..., mean_similarity: _Optional[float] = ...) -> None: ...

class AuditEntry(_message.Message):
    __slots__ = ("number", "at_unix_ms", "who", "why", "what", "subject", "before", "after")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AT_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    number: int
    at_unix_ms: int
    who: str
    why: str
    what: str
    subject: str
    before: str
    after: str
    def __init__(self, number: _Optional[int] = ..., at_unix_ms: _Optional[int] = ..., who: _Optional[str] = ..., why: _Optional[str] = ..., what: _Optional[str] = ..., subject: _Optional[str] = ..., before: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...
