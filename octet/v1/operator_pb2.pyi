from octet.v1 import control_pb2 as _control_pb2
from octet.v1 import error_pb2 as _error_pb2
from octet.v1 import inference_pb2 as _inference_pb2
from octet.v1 import error_pb2 as _error_pb2_1
from octet.v1 import specialist_pb2 as _specialist_pb2
from octet.v1 import overview_pb2 as _overview_pb2
from octet.v1 import control_pb2 as _control_pb2_1
from octet.v1 import error_pb2 as _error_pb2_1_1
from octet.v1 import slo_pb2 as _slo_pb2
from octet.v1 import specialist_pb2 as _specialist_pb2_1
from octet.v1 import slo_pb2 as _slo_pb2_1
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union
from octet.v1.control_pb2 import BreakerInfo as BreakerInfo
from octet.v1.control_pb2 import VerifierStanding as VerifierStanding
from octet.v1.control_pb2 import KnobInfo as KnobInfo
from octet.v1.control_pb2 import LaneInfo as LaneInfo
from octet.v1.control_pb2 import ReplicaInfo as ReplicaInfo
from octet.v1.control_pb2 import ShadowCounts as ShadowCounts
from octet.v1.control_pb2 import ShadowReasonCount as ShadowReasonCount
from octet.v1.control_pb2 import ShadowRow as ShadowRow
from octet.v1.control_pb2 import AuditEntry as AuditEntry
from octet.v1.error_pb2 import Error as Error
from octet.v1.error_pb2 import Place as Place
from octet.v1.error_pb2 import StatusDetails as StatusDetails
from octet.v1.error_pb2 import RetryInfo as RetryInfo
from octet.v1.error_pb2 import ErrorReason as ErrorReason
from octet.v1.inference_pb2 import InferRequest as InferRequest
from octet.v1.inference_pb2 import InferEvent as InferEvent
from octet.v1.inference_pb2 import InferResponse as InferResponse
from octet.v1.inference_pb2 import CountResponse as CountResponse
from octet.v1.inference_pb2 import GetReceiptRequest as GetReceiptRequest
from octet.v1.inference_pb2 import CancelRequest as CancelRequest
from octet.v1.inference_pb2 import CancelResponse as CancelResponse
from octet.v1.inference_pb2 import Decision as Decision
from octet.v1.inference_pb2 import Score as Score
from octet.v1.inference_pb2 import Attempt as Attempt
from octet.v1.inference_pb2 import Receipt as Receipt
from octet.v1.inference_pb2 import Validation as Validation
from octet.v1.inference_pb2 import Between as Between
from octet.v1.inference_pb2 import ShadowOrder as ShadowOrder
from octet.v1.inference_pb2 import RouterTimings as RouterTimings
from octet.v1.inference_pb2 import DecisionSource as DecisionSource
from octet.v1.overview_pb2 import Overview as Overview
from octet.v1.overview_pb2 import Trouble as Trouble
from octet.v1.overview_pb2 import SpecialistView as SpecialistView
from octet.v1.overview_pb2 import Rates as Rates
from octet.v1.overview_pb2 import ReplicaView as ReplicaView
from octet.v1.overview_pb2 import ReceiptLine as ReceiptLine
from octet.v1.overview_pb2 import History as History
from octet.v1.overview_pb2 import SpecialistHistory as SpecialistHistory
from octet.v1.overview_pb2 import Point as Point
from octet.v1.slo_pb2 import Slo as Slo
from octet.v1.slo_pb2 import Latency as Latency
from octet.v1.slo_pb2 import Objective as Objective
from octet.v1.slo_pb2 import Burn as Burn
from octet.v1.slo_pb2 import SloSlice as SloSlice
from octet.v1.slo_pb2 import SloTally as SloTally

DESCRIPTOR: _descriptor.FileDescriptor
ERROR_REASON_UNSPECIFIED: _error_pb2_1_1.ErrorReason
ERROR_REASON_MALFORMED: _error_pb2_1_1.ErrorReason
ERROR_REASON_INVALID_FIELD: _error_pb2_1_1.ErrorReason
ERROR_REASON_PROMPT_TOO_LONG: _error_pb2_1_1.ErrorReason
ERROR_REASON_UNKNOWN_ADAPTER: _error_pb2_1_1.ErrorReason
ERROR_REASON_ADAPTER_REFUSED: _error_pb2_1_1.ErrorReason
ERROR_REASON_QUEUE_FULL: _error_pb2_1_1.ErrorReason
ERROR_REASON_DRAINING: _error_pb2_1_1.ErrorReason
ERROR_REASON_CALLER_STALLED: _error_pb2_1_1.ErrorReason
ERROR_REASON_DEADLINE: _error_pb2_1_1.ErrorReason
ERROR_REASON_ENGINE_FAILED: _error_pb2_1_1.ErrorReason
ERROR_REASON_REPLICA_FAILED: _error_pb2_1_1.ErrorReason
ERROR_REASON_NOT_READY: _error_pb2_1_1.ErrorReason
ERROR_REASON_CANCELLED: _error_pb2_1_1.ErrorReason
ERROR_REASON_NO_SPECIALIST: _error_pb2_1_1.ErrorReason
ERROR_REASON_UNKNOWN_SPECIALIST: _error_pb2_1_1.ErrorReason
ERROR_REASON_NO_REPLICA: _error_pb2_1_1.ErrorReason
ERROR_REASON_REPLICA_LOST: _error_pb2_1_1.ErrorReason
ERROR_REASON_UNKNOWN_REQUEST: _error_pb2_1_1.ErrorReason
ERROR_REASON_DUPLICATE_REQUEST: _error_pb2_1_1.ErrorReason
ERROR_REASON_INTERNAL: _error_pb2_1_1.ErrorReason
ERROR_REASON_DEADLINE_UNREACHABLE: _error_pb2_1_1.ErrorReason
ERROR_REASON_WOULD_DELAY_OTHERS: _error_pb2_1_1.ErrorReason
ERROR_REASON_SHED: _error_pb2_1_1.ErrorReason
ERROR_REASON_BELOW_FLOOR: _error_pb2_1_1.ErrorReason
ERROR_REASON_DEMOTED: _error_pb2_1_1.ErrorReason
ERROR_REASON_CONFLICT: _error_pb2_1_1.ErrorReason
ERROR_REASON_UNKNOWN_NAME: _error_pb2_1_1.ErrorReason
ERROR_REASON_STORE_UNAVAILABLE: _error_pb2_1_1.ErrorReason
ERROR_REASON_UNAUTHENTICATED: _error_pb2_1_1.ErrorReason
ERROR_REASON_FORBIDDEN: _error_pb2_1_1.ErrorReason
ERROR_REASON_KEY_LIMIT: _error_pb2_1_1.ErrorReason
ERROR_REASON_UNKNOWN_JOB: _error_pb2_1_1.ErrorReason
ERROR_REASON_NO_TOOLS: _error_pb2_1_1.ErrorReason
ERROR_REASON_QUARANTINED: _error_pb2_1_1.ErrorReason
DECISION_SOURCE_UNSPECIFIED: _inference_pb2.DecisionSource
DECISION_SOURCE_FORCED: _inference_pb2.DecisionSource
DECISION_SOURCE_INTENT: _inference_pb2.DecisionSource
DECISION_SOURCE_RULE: _inference_pb2.DecisionSource
DECISION_SOURCE_CLASSIFIER: _inference_pb2.DecisionSource
DECISION_SOURCE_DEFAULT: _inference_pb2.DecisionSource
DECISION_SOURCE_BARE: _inference_pb2.DecisionSource

class GetSloRequest(_message.Message):
    __slots__ = ("specialist",)
    SPECIALIST_FIELD_NUMBER: _ClassVar[int]
    specialist: str
    def __init__(self, specialist: _Optional[str] = ...) -> None: ...

class GetSloResponse(_message.Message):
    __slots__ = ("slos",)
    SLOS_FIELD_NUMBER: _ClassVar[int]
    slos: _containers.RepeatedCompositeFieldContainer[_slo_pb2_1.Slo]
    def __init__(self, slos: _Optional[_Iterable[_Union[_slo_pb2_1.Slo, _Mapping]]] = ...) -> None: ...

class GetOverviewRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchOverviewRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetHistoryRequest(_message.Message):
    __slots__ = ("last_seconds",)
    LAST_SECONDS_FIELD_NUMBER: _ClassVar[int]
    last_seconds: float
    def __init__(self, last_seconds: _Optional[float] = ...) -> None: ...

class ListReceiptsRequest(_message.Message):
    __slots__ = ("most", "specialist", "outcome", "before_unix_ms", "tenant")
    MOST_FIELD_NUMBER: _ClassVar[int]
    SPECIALIST_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    BEFORE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    most: int
    specialist: str
    outcome: str
    before_unix_ms: int
    tenant: str
    def __init__(self, most: _Optional[int] = ..., specialist: _Optional[str] = ..., outcome: _Optional[str] = ..., before_unix_ms: _Optional[int] = ..., tenant: _Optional[str] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("request_id", "tenant")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class Story(_message.Message):
    __slots__ = ("receipt", "comparison", "judged", "judged_kind", "judged_why", "changes")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    COMPARISON_FIELD_NUMBER: _ClassVar[int]
    JUDGED_FIELD_NUMBER: _ClassVar[int]
    JUDGED_KIND_FIELD_NUMBER: _ClassVar[int]
    JUDGED_WHY_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    receipt: _inference_pb2.Receipt
    comparison: Comparison
    judged: str
    judged_kind: str
    judged_why: str
    changes: _containers.RepeatedCompositeFieldContainer[_control_pb2_1.AuditEntry]
    def __init__(self, receipt: _Optional[_Union[_inference_pb2.Receipt, _Mapping]] = ..., comparison: _Optional[_Union[Comparison, _Mapping]] = ..., judged: _Optional[str] = ..., judged_kind: _Optional[str] = ..., judged_why: _Optional[str] = ..., changes: _Optional[_Iterable[_Union[_control_pb2_1.AuditEntry, _Mapping]]] = ...) -> None: ...

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
    breakers: _containers.RepeatedCompositeFieldContainer[_control_pb2_1.BreakerInfo]
    store_trouble: str
    def __init__(self, breakers: _Optional[_Iterable[_Union[_control_pb2_1.BreakerInfo, _Mapping]]] = ..., store_trouble: _Optional[str] = ...) -> None: ...

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

class RelearnFloorRequest(_message.Message):
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
    knobs: _containers.RepeatedCompositeFieldContainer[_control_pb2_1.KnobInfo]
    def __init__(self, knobs: _Optional[_Iterable[_Union[_control_pb2_1.KnobInfo, _Mapping]]] = ...) -> None: ...

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
    lanes: _containers.RepeatedCompositeFieldContainer[_control_pb2_1.LaneInfo]
    def __init__(self, lanes: _Optional[_Iterable[_Union[_control_pb2_1.LaneInfo, _Mapping]]] = ...) -> None: ...

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

class RefreshModelRequest(_message.Message):
    __slots__ = ("specialist", "model", "digest", "change")
    SPECIALIST_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    specialist: str
    model: str
    digest: str
    change: Change
    def __init__(self, specialist: _Optional[str] = ..., model: _Optional[str] = ..., digest: _Optional[str] = ..., change: _Optional[_Union[Change, _Mapping]] = ...) -> None: ...

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
    replicas: _containers.RepeatedCompositeFieldContainer[_control_pb2_1.ReplicaInfo]
    def __init__(self, replicas: _Optional[_Iterable[_Union[_control_pb2_1.ReplicaInfo, _Mapping]]] = ...) -> None: ...

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
    rows: _containers.RepeatedCompositeFieldContainer[_control_pb2_1.ShadowRow]
    counts: _control_pb2_1.ShadowCounts
    def __init__(self, rows: _Optional[_Iterable[_Union[_control_pb2_1.ShadowRow, _Mapping]]] = ..., counts: _Optional[_Union[_control_pb2_1.ShadowCounts, _Mapping]] = ...) -> None: ...

class ListComparisonsRequest(_message.Message):
    __slots__ = ("last_seconds",)
    LAST_SECONDS_FIELD_NUMBER: _ClassVar[int]
    last_seconds: float
    def __init__(self, last_seconds: _Optional[float] = ...) -> None: ...

class Comparison(_message.Message):
    __slots__ = ("request_id", "at_unix_ms", "intent", "primary", "shadow", "why", "confidence", "primary_outcome", "shadow_outcome", "similarity", "agreed", "text", "feature_indices", "feature_values", "classifier_digest", "feature_version")
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
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FEATURE_INDICES_FIELD_NUMBER: _ClassVar[int]
    FEATURE_VALUES_FIELD_NUMBER: _ClassVar[int]
    CLASSIFIER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    FEATURE_VERSION_FIELD_NUMBER: _ClassVar[int]
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
    text: str
    feature_indices: _containers.RepeatedScalarFieldContainer[int]
    feature_values: _containers.RepeatedScalarFieldContainer[float]
    classifier_digest: str
    feature_version: int
    def __init__(self, request_id: _Optional[str] = ..., at_unix_ms: _Optional[int] = ..., intent: _Optional[str] = ..., primary: _Optional[str] = ..., shadow: _Optional[str] = ..., why: _Optional[str] = ..., confidence: _Optional[float] = ..., primary_outcome: _Optional[str] = ..., shadow_outcome: _Optional[str] = ..., similarity: _Optional[float] = ..., agreed: _Optional[bool] = ..., text: _Optional[str] = ..., feature_indices: _Optional[_Iterable[int]] = ..., feature_values: _Optional[_Iterable[float]] = ..., classifier_digest: _Optional[str] = ..., feature_version: _Optional[int] = ...) -> None: ...

class ListAuditRequest(_message.Message):
    __slots__ = ("most", "subject")
    MOST_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    most: int
    subject: str
    def __init__(self, most: _Optional[int] = ..., subject: _Optional[str] = ...) -> None: ...

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
    audit: _control_pb2_1.AuditEntry
    store_trouble: str
    dropped: int
    def __init__(self, at_unix_ms: _Optional[int] = ..., audit: _Optional[_Union[_control_pb2_1.AuditEntry, _Mapping]] = ..., store_trouble: _Optional[str] = ..., dropped: _Optional[int] = ...) -> None: ...
