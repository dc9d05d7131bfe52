from octet.v1 import error_pb2 as _error_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union
from octet.v1.error_pb2 import Error as Error
from octet.v1.error_pb2 import StatusDetails as StatusDetails
from octet.v1.error_pb2 import RetryInfo as RetryInfo
from octet.v1.error_pb2 import ErrorReason as ErrorReason

DESCRIPTOR: _descriptor.FileDescriptor
ERROR_REASON_UNSPECIFIED: _error_pb2.ErrorReason
ERROR_REASON_MALFORMED: _error_pb2.ErrorReason
ERROR_REASON_INVALID_FIELD: _error_pb2.ErrorReason
ERROR_REASON_PROMPT_TOO_LONG: _error_pb2.ErrorReason
ERROR_REASON_UNKNOWN_ADAPTER: _error_pb2.ErrorReason
ERROR_REASON_ADAPTER_REFUSED: _error_pb2.ErrorReason
ERROR_REASON_QUEUE_FULL: _error_pb2.ErrorReason
ERROR_REASON_DRAINING: _error_pb2.ErrorReason
ERROR_REASON_CALLER_STALLED: _error_pb2.ErrorReason
ERROR_REASON_DEADLINE: _error_pb2.ErrorReason
ERROR_REASON_ENGINE_FAILED: _error_pb2.ErrorReason
ERROR_REASON_REPLICA_FAILED: _error_pb2.ErrorReason
ERROR_REASON_NOT_READY: _error_pb2.ErrorReason
ERROR_REASON_CANCELLED: _error_pb2.ErrorReason
ERROR_REASON_NO_SPECIALIST: _error_pb2.ErrorReason
ERROR_REASON_UNKNOWN_SPECIALIST: _error_pb2.ErrorReason
ERROR_REASON_NO_REPLICA: _error_pb2.ErrorReason
ERROR_REASON_REPLICA_LOST: _error_pb2.ErrorReason
ERROR_REASON_UNKNOWN_REQUEST: _error_pb2.ErrorReason
ERROR_REASON_DUPLICATE_REQUEST: _error_pb2.ErrorReason
ERROR_REASON_INTERNAL: _error_pb2.ErrorReason
ERROR_REASON_DEADLINE_UNREACHABLE: _error_pb2.ErrorReason
ERROR_REASON_WOULD_DELAY_OTHERS: _error_pb2.ErrorReason
ERROR_REASON_SHED: _error_pb2.ErrorReason
ERROR_REASON_BELOW_FLOOR: _error_pb2.ErrorReason
ERROR_REASON_DEMOTED: _error_pb2.ErrorReason
ERROR_REASON_CONFLICT: _error_pb2.ErrorReason
ERROR_REASON_UNKNOWN_NAME: _error_pb2.ErrorReason
ERROR_REASON_STORE_UNAVAILABLE: _error_pb2.ErrorReason
ERROR_REASON_UNAUTHENTICATED: _error_pb2.ErrorReason
ERROR_REASON_FORBIDDEN: _error_pb2.ErrorReason
ERROR_REASON_KEY_LIMIT: _error_pb2.ErrorReason
ERROR_REASON_UNKNOWN_JOB: _error_pb2.ErrorReason
ERROR_REASON_NO_TOOLS: _error_pb2.ErrorReason

class Change(_message.Message):
    __slots__ = ("who", "why")
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    who: str
    why: str
    def __init__(self, who: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class ListBreakersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListBreakersResponse(_message.Message):
    __slots__ = ("breakers", "store_trouble")
    BREAKERS_FIELD_NUMBER: _ClassVar[int]
    STORE_TROUBLE_FIELD_NUMBER: _ClassVar[int]
    breakers: _containers.RepeatedCompositeFieldContainer[BreakerInfo]
    store_trouble: str
    def __init__(self, breakers: _Optional[_Iterable[_Union[BreakerInfo, _Mapping]]] = ..., store_trouble: _Optional[str] = ...) -> None: ...

class BreakerInfo(_message.Message):
    __slots__ = ("specialist", "lane", "adapters", "lane_status", "state", "hold", "hold_by", "hold_why", "since_unix_ms", "pass_rate", "samples", "floor", "min_samples", "window_seconds", "fallback", "outlook", "verifier")
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
    def __init__(self, specialist: _Optional[str] = ..., lane: _Optional[int] = ..., adapters: _Optional[_Iterable[str]] = ..., lane_status: _Optional[str] = ..., state: _Optional[str] = ..., hold: _Optional[str] = ..., hold_by: _Optional[str] = ..., hold_why: _Optional[str] = ..., since_unix_ms: _Optional[int] = ..., pass_rate: _Optional[float] = ..., samples: _Optional[int] = ..., floor: _Optional[float] = ..., min_samples: _Optional[int] = ..., window_seconds: _Optional[float] = ..., fallback: _Optional[str] = ..., outlook: _Optional[str] = ..., verifier: _Optional[str] = ...) -> None: ...

class HoldBreakerRequest(_message.Message):
    __slots__ = ("specialist", "hold", "change")
    SPECIALIST_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    specialist: str
    hold: str
    change: Change
    def __init__(self, specialist: _Optional[str] = ..., hold: _Optional[str] = ..., change: _Optional[_Union[Change, _Mapping]] = ...) -> None: ...

class ReleaseBreakerRequest(_message.Message):
    __slots__ = ("specialist", "change")
    SPECIALIST_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    specialist: str
    change: Change
    def __init__(self, specialist: _Optional[str] = ..., change: _Optional[_Union[Change, _Mapping]] = ...) -> None: ...

class ListKnobsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListKnobsResponse(_message.Message):
    __slots__ = ("knobs",)
    KNOBS_FIELD_NUMBER: _ClassVar[int]
    knobs: _containers.RepeatedCompositeFieldContainer[KnobInfo]
    def __init__(self, knobs: _Optional[_Iterable[_Union[KnobInfo, _Mapping]]] = ...) -> None: ...

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

class SetKnobRequest(_message.Message):
    __slots__ = ("name", "value", "change")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    change: Change
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ..., change: _Optional[_Union[Change, _Mapping]] = ...) -> None: ...

class ReleaseKnobRequest(_message.Message):
    __slots__ = ("name", "change")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    change: Change
    def __init__(self, name: _Optional[str] = ..., change: _Optional[_Union[Change, _Mapping]] = ...) -> None: ...

class ListLanesRequest(_message.Message):
    __slots__ = ("specialist",)
    SPECIALIST_FIELD_NUMBER: _ClassVar[int]
    specialist: str
    def __init__(self, specialist: _Optional[str] = ...) -> None: ...

class ListLanesResponse(_message.Message):
    __slots__ = ("lanes",)
    LANES_FIELD_NUMBER: _ClassVar[int]
    lanes: _containers.RepeatedCompositeFieldContainer[LaneInfo]
    def __init__(self, lanes: _Optional[_Iterable[_Union[LaneInfo, _Mapping]]] = ...) -> None: ...

class LaneInfo(_message.Message):
    __slots__ = ("specialist", "number", "adapter", "digests", "revision", "status", "since_unix_ms", "by", "why", "pass_rate", "samples", "outlook", "resident", "replicas")
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
    def __init__(self, specialist: _Optional[str] = ..., number: _Optional[int] = ..., adapter: _Optional[str] = ..., digests: _Optional[_Iterable[str]] = ..., revision: _Optional[str] = ..., status: _Optional[str] = ..., since_unix_ms: _Optional[int] = ..., by: _Optional[str] = ..., why: _Optional[str] = ..., pass_rate: _Optional[float] = ..., samples: _Optional[int] = ..., outlook: _Optional[str] = ..., resident: _Optional[int] = ..., replicas: _Optional[int] = ...) -> None: ...

class LoadLaneRequest(_message.Message):
    __slots__ = ("specialist", "path", "name", "change")
    SPECIALIST_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    specialist: str
    path: str
    name: str
    change: Change
    def __init__(self, specialist: _Optional[str] = ..., path: _Optional[str] = ..., name: _Optional[str] = ..., change: _Optional[_Union[Change, _Mapping]] = ...) -> None: ...

class PromoteLaneRequest(_message.Message):
    __slots__ = ("specialist", "name", "change")
    SPECIALIST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    specialist: str
    name: str
    change: Change
    def __init__(self, specialist: _Optional[str] = ..., name: _Optional[str] = ..., change: _Optional[_Union[Change, _Mapping]] = ...) -> None: ...

class RollBackLaneRequest(_message.Message):
    __slots__ = ("specialist", "change")
    SPECIALIST_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    specialist: str
    change: Change
    def __init__(self, specialist: _Optional[str] = ..., change: _Optional[_Union[Change, _Mapping]] = ...) -> None: ...

class ListReplicasRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListReplicasResponse(_message.Message):
    __slots__ = ("replicas",)
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaInfo]
    def __init__(self, replicas: _Optional[_Iterable[_Union[ReplicaInfo, _Mapping]]] = ...) -> None: ...

class ReplicaInfo(_message.Message):
    __slots__ = ("name", "specialist", "address", "status", "health_breaker", "waiting", "running", "shadows", "revision", "refusing", "usual_wait", "estimate_error_p90")
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
    def __init__(self, name: _Optional[str] = ..., specialist: _Optional[str] = ..., address: _Optional[str] = ..., status: _Optional[str] = ..., health_breaker: _Optional[str] = ..., waiting: _Optional[int] = ..., running: _Optional[int] = ..., shadows: _Optional[int] = ..., revision: _Optional[str] = ..., refusing: _Optional[bool] = ..., usual_wait: _Optional[float] = ..., estimate_error_p90: _Optional[float] = ...) -> None: ...

class DrainReplicaRequest(_message.Message):
    __slots__ = ("replica", "change")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    replica: str
    change: Change
    def __init__(self, replica: _Optional[str] = ..., change: _Optional[_Union[Change, _Mapping]] = ...) -> None: ...

class UndrainReplicaRequest(_message.Message):
    __slots__ = ("replica", "change")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    replica: str
    change: Change
    def __init__(self, replica: _Optional[str] = ..., change: _Optional[_Union[Change, _Mapping]] = ...) -> None: ...

class ShadowReportRequest(_message.Message):
    __slots__ = ("last_seconds",)
    LAST_SECONDS_FIELD_NUMBER: _ClassVar[int]
    last_seconds: float
    def __init__(self, last_seconds: _Optional[float] = ...) -> None: ...

class ShadowReportResponse(_message.Message):
    __slots__ = ("rows", "counts")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[ShadowRow]
    counts: ShadowCounts
    def __init__(self, rows: _Optional[_Iterable[_Union[ShadowRow, _Mapping]]] = ..., counts: _Optional[_Union[ShadowCounts, _Mapping]] = ...) -> None: ...

class ShadowCounts(_message.Message):
    __slots__ = ("ordered", "sent", "answered", "shed", "failed", "compared")
    ORDERED_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    SHED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    COMPARED_FIELD_NUMBER: _ClassVar[int]
    ordered: int
    sent: int
    answered: int
    shed: int
    failed: int
    compared: int
    def __init__(self, ordered: _Optional[int] = ..., sent: _Optional[int] = ..., answered: _Optional[int] = ..., shed: _Optional[int] = ..., failed: _Optional[int] = ..., compared: _Optional[int] = ...) -> None: ...

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

class ListComparisonsRequest(_message.Message):
    __slots__ = ("last_seconds",)
    LAST_SECONDS_FIELD_NUMBER: _ClassVar[int]
    last_seconds: float
    def __init__(self, last_seconds: _Optional[float] = ...) -> None: ...

class Comparison(_message.Message):
    __slots__ = ("request_id", "at_unix_ms", "intent", "primary", "shadow", "why", "confidence", "primary_outcome", "shadow_outcome", "similarity", "agreed", "feature_indices", "feature_values", "classifier_digest")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    AT_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    INTENT_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_OUTCOME_FIELD_NUMBER: _ClassVar[int]
    SHADOW_OUTCOME_FIELD_NUMBER: _ClassVar[int]
    SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    AGREED_FIELD_NUMBER: _ClassVar[int]
    FEATURE_INDICES_FIELD_NUMBER: _ClassVar[int]
    FEATURE_VALUES_FIELD_NUMBER: _ClassVar[int]
    CLASSIFIER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    at_unix_ms: int
    intent: str
    primary: str
    shadow: str
    why: str
    confidence: float
    primary_outcome: str
    shadow_outcome: str
    similarity: float
    agreed: bool
    feature_indices: _containers.RepeatedScalarFieldContainer[int]
    feature_values: _containers.RepeatedScalarFieldContainer[float]
    classifier_digest: str
    def __init__(self, request_id: _Optional[str] = ..., at_unix_ms: _Optional[int] = ..., intent: _Optional[str] = ..., primary: _Optional[str] = ..., shadow: _Optional[str] = ..., why: _Optional[str] = ..., confidence: _Optional[float] = ..., primary_outcome: _Optional[str] = ..., shadow_outcome: _Optional[str] = ..., similarity: _Optional[float] = ..., agreed: _Optional[bool] = ..., feature_indices: _Optional[_Iterable[int]] = ..., feature_values: _Optional[_Iterable[float]] = ..., classifier_digest: _Optional[str] = ...) -> None: ...

class ListAuditRequest(_message.Message):
    __slots__ = ("most", "subject")
    MOST_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    most: int
    subject: str
    def __init__(self, most: _Optional[int] = ..., subject: _Optional[str] = ...) -> None: ...

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

class WatchEventsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OperatorEvent(_message.Message):
    __slots__ = ("at_unix_ms", "audit", "store_trouble", "dropped")
    AT_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    STORE_TROUBLE_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    at_unix_ms: int
    audit: AuditEntry
    store_trouble: str
    dropped: int
    def __init__(self, at_unix_ms: _Optional[int] = ..., audit: _Optional[_Union[AuditEntry, _Mapping]] = ..., store_trouble: _Optional[str] = ..., dropped: _Optional[int] = ...) -> None: ...
