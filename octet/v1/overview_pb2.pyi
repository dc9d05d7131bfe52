from octet.v1 import control_pb2 as _control_pb2
from octet.v1 import error_pb2 as _error_pb2
from octet.v1 import slo_pb2 as _slo_pb2
from octet.v1 import specialist_pb2 as _specialist_pb2
from octet.v1 import error_pb2 as _error_pb2_1
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
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
from octet.v1.slo_pb2 import Slo as Slo
from octet.v1.slo_pb2 import Latency as Latency
from octet.v1.slo_pb2 import Objective as Objective
from octet.v1.slo_pb2 import Burn as Burn
from octet.v1.slo_pb2 import SloSlice as SloSlice
from octet.v1.slo_pb2 import SloTally as SloTally
from octet.v1.specialist_pb2 import GenerateRequest as GenerateRequest
from octet.v1.specialist_pb2 import AttachRequest as AttachRequest
from octet.v1.specialist_pb2 import StreamStart as StreamStart
from octet.v1.specialist_pb2 import StreamCredit as StreamCredit
from octet.v1.specialist_pb2 import AttachResponse as AttachResponse
from octet.v1.specialist_pb2 import AttachHello as AttachHello
from octet.v1.specialist_pb2 import StreamEnd as StreamEnd
from octet.v1.specialist_pb2 import ReleasePlacesRequest as ReleasePlacesRequest
from octet.v1.specialist_pb2 import ReleasePlacesResponse as ReleasePlacesResponse
from octet.v1.specialist_pb2 import Structure as Structure
from octet.v1.specialist_pb2 import Choices as Choices
from octet.v1.specialist_pb2 import TokenIds as TokenIds
from octet.v1.specialist_pb2 import CountTokensResponse as CountTokensResponse
from octet.v1.specialist_pb2 import Chat as Chat
from octet.v1.specialist_pb2 import Message as Message
from octet.v1.specialist_pb2 import Tool as Tool
from octet.v1.specialist_pb2 import ToolChoice as ToolChoice
from octet.v1.specialist_pb2 import ToolCall as ToolCall
from octet.v1.specialist_pb2 import Sampling as Sampling
from octet.v1.specialist_pb2 import LogitBias as LogitBias
from octet.v1.specialist_pb2 import GenerateEvent as GenerateEvent
from octet.v1.specialist_pb2 import Lane as Lane
from octet.v1.specialist_pb2 import Accepted as Accepted
from octet.v1.specialist_pb2 import Forecast as Forecast
from octet.v1.specialist_pb2 import Chunk as Chunk
from octet.v1.specialist_pb2 import ToolCallPart as ToolCallPart
from octet.v1.specialist_pb2 import TokenLogprobs as TokenLogprobs
from octet.v1.specialist_pb2 import TokenLogprob as TokenLogprob
from octet.v1.specialist_pb2 import Usage as Usage
from octet.v1.specialist_pb2 import Timings as Timings
from octet.v1.specialist_pb2 import WatchLoadRequest as WatchLoadRequest
from octet.v1.specialist_pb2 import LoadReport as LoadReport
from octet.v1.specialist_pb2 import ProcessEnd as ProcessEnd
from octet.v1.specialist_pb2 import GetMetricsRequest as GetMetricsRequest
from octet.v1.specialist_pb2 import GetMetricsResponse as GetMetricsResponse
from octet.v1.specialist_pb2 import EstimateError as EstimateError
from octet.v1.specialist_pb2 import Blocks as Blocks
from octet.v1.specialist_pb2 import ResidentAdapter as ResidentAdapter
from octet.v1.specialist_pb2 import LoadAdapterRequest as LoadAdapterRequest
from octet.v1.specialist_pb2 import LoadAdapterResponse as LoadAdapterResponse
from octet.v1.specialist_pb2 import UnloadAdapterRequest as UnloadAdapterRequest
from octet.v1.specialist_pb2 import UnloadAdapterResponse as UnloadAdapterResponse
from octet.v1.specialist_pb2 import DrainRequest as DrainRequest
from octet.v1.specialist_pb2 import DrainResponse as DrainResponse
from octet.v1.specialist_pb2 import DescribeRequest as DescribeRequest
from octet.v1.specialist_pb2 import DescribeResponse as DescribeResponse
from octet.v1.specialist_pb2 import Model as Model
from octet.v1.specialist_pb2 import Kernel as Kernel
from octet.v1.specialist_pb2 import Limit as Limit
from octet.v1.specialist_pb2 import FinishReason as FinishReason
from octet.v1.specialist_pb2 import MissReason as MissReason

DESCRIPTOR: _descriptor.FileDescriptor
ERROR_REASON_UNSPECIFIED: _error_pb2_1.ErrorReason
ERROR_REASON_MALFORMED: _error_pb2_1.ErrorReason
ERROR_REASON_INVALID_FIELD: _error_pb2_1.ErrorReason
ERROR_REASON_PROMPT_TOO_LONG: _error_pb2_1.ErrorReason
ERROR_REASON_UNKNOWN_ADAPTER: _error_pb2_1.ErrorReason
ERROR_REASON_ADAPTER_REFUSED: _error_pb2_1.ErrorReason
ERROR_REASON_QUEUE_FULL: _error_pb2_1.ErrorReason
ERROR_REASON_DRAINING: _error_pb2_1.ErrorReason
ERROR_REASON_CALLER_STALLED: _error_pb2_1.ErrorReason
ERROR_REASON_DEADLINE: _error_pb2_1.ErrorReason
ERROR_REASON_ENGINE_FAILED: _error_pb2_1.ErrorReason
ERROR_REASON_REPLICA_FAILED: _error_pb2_1.ErrorReason
ERROR_REASON_NOT_READY: _error_pb2_1.ErrorReason
ERROR_REASON_CANCELLED: _error_pb2_1.ErrorReason
ERROR_REASON_NO_SPECIALIST: _error_pb2_1.ErrorReason
ERROR_REASON_UNKNOWN_SPECIALIST: _error_pb2_1.ErrorReason
ERROR_REASON_NO_REPLICA: _error_pb2_1.ErrorReason
ERROR_REASON_REPLICA_LOST: _error_pb2_1.ErrorReason
ERROR_REASON_UNKNOWN_REQUEST: _error_pb2_1.ErrorReason
ERROR_REASON_DUPLICATE_REQUEST: _error_pb2_1.ErrorReason
ERROR_REASON_INTERNAL: _error_pb2_1.ErrorReason
ERROR_REASON_DEADLINE_UNREACHABLE: _error_pb2_1.ErrorReason
ERROR_REASON_WOULD_DELAY_OTHERS: _error_pb2_1.ErrorReason
ERROR_REASON_SHED: _error_pb2_1.ErrorReason
ERROR_REASON_BELOW_FLOOR: _error_pb2_1.ErrorReason
ERROR_REASON_DEMOTED: _error_pb2_1.ErrorReason
ERROR_REASON_CONFLICT: _error_pb2_1.ErrorReason
ERROR_REASON_UNKNOWN_NAME: _error_pb2_1.ErrorReason
ERROR_REASON_STORE_UNAVAILABLE: _error_pb2_1.ErrorReason
ERROR_REASON_UNAUTHENTICATED: _error_pb2_1.ErrorReason
ERROR_REASON_FORBIDDEN: _error_pb2_1.ErrorReason
ERROR_REASON_KEY_LIMIT: _error_pb2_1.ErrorReason
ERROR_REASON_UNKNOWN_JOB: _error_pb2_1.ErrorReason
ERROR_REASON_NO_TOOLS: _error_pb2_1.ErrorReason
ERROR_REASON_QUARANTINED: _error_pb2_1.ErrorReason
FINISH_REASON_UNSPECIFIED: _specialist_pb2.FinishReason
FINISH_REASON_STOP: _specialist_pb2.FinishReason
FINISH_REASON_LENGTH: _specialist_pb2.FinishReason
FINISH_REASON_CANCELLED: _specialist_pb2.FinishReason
FINISH_REASON_DEADLINE: _specialist_pb2.FinishReason
FINISH_REASON_ERROR: _specialist_pb2.FinishReason
FINISH_REASON_SHED: _specialist_pb2.FinishReason
MISS_REASON_UNSPECIFIED: _specialist_pb2.MissReason
MISS_REASON_FIRST_TIME: _specialist_pb2.MissReason
MISS_REASON_EVICTED: _specialist_pb2.MissReason
MISS_REASON_OTHER_ADAPTER: _specialist_pb2.MissReason
MISS_REASON_DIVERGED: _specialist_pb2.MissReason
MISS_REASON_CACHE_OFF: _specialist_pb2.MissReason
MISS_REASON_NO_SESSION: _specialist_pb2.MissReason
MISS_REASON_NO_BOUNDARY: _specialist_pb2.MissReason

class Overview(_message.Message):
    __slots__ = ("at_unix_ms", "ensemble", "version", "troubles", "specialists", "knobs", "shadow_rows", "shadow_counts", "receipts", "audit", "store_trouble", "unrouted_per_second", "headline")
    AT_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TROUBLES_FIELD_NUMBER: _ClassVar[int]
    SPECIALISTS_FIELD_NUMBER: _ClassVar[int]
    KNOBS_FIELD_NUMBER: _ClassVar[int]
    SHADOW_ROWS_FIELD_NUMBER: _ClassVar[int]
    SHADOW_COUNTS_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    STORE_TROUBLE_FIELD_NUMBER: _ClassVar[int]
    UNROUTED_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    HEADLINE_FIELD_NUMBER: _ClassVar[int]
    at_unix_ms: int
    ensemble: str
    version: str
    troubles: _containers.RepeatedCompositeFieldContainer[Trouble]
    specialists: _containers.RepeatedCompositeFieldContainer[SpecialistView]
    knobs: _containers.RepeatedCompositeFieldContainer[_control_pb2.KnobInfo]
    shadow_rows: _containers.RepeatedCompositeFieldContainer[_control_pb2.ShadowRow]
    shadow_counts: _control_pb2.ShadowCounts
    receipts: _containers.RepeatedCompositeFieldContainer[ReceiptLine]
    audit: _containers.RepeatedCompositeFieldContainer[_control_pb2.AuditEntry]
    store_trouble: str
    unrouted_per_second: float
    headline: str
    def __init__(self, at_unix_ms: _Optional[int] = ..., ensemble: _Optional[str] = ..., version: _Optional[str] = ..., troubles: _Optional[_Iterable[_Union[Trouble, _Mapping]]] = ..., specialists: _Optional[_Iterable[_Union[SpecialistView, _Mapping]]] = ..., knobs: _Optional[_Iterable[_Union[_control_pb2.KnobInfo, _Mapping]]] = ..., shadow_rows: _Optional[_Iterable[_Union[_control_pb2.ShadowRow, _Mapping]]] = ..., shadow_counts: _Optional[_Union[_control_pb2.ShadowCounts, _Mapping]] = ..., receipts: _Optional[_Iterable[_Union[ReceiptLine, _Mapping]]] = ..., audit: _Optional[_Iterable[_Union[_control_pb2.AuditEntry, _Mapping]]] = ..., store_trouble: _Optional[str] = ..., unrouted_per_second: _Optional[float] = ..., headline: _Optional[str] = ...) -> None: ...

class Trouble(_message.Message):
    __slots__ = ("severity", "kind", "subject", "text", "since_unix_ms", "runbook")
    class Severity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SEVERITY_UNSPECIFIED: _ClassVar[Trouble.Severity]
        NOTE: _ClassVar[Trouble.Severity]
        WARNING: _ClassVar[Trouble.Severity]
        CRITICAL: _ClassVar[Trouble.Severity]
    SEVERITY_UNSPECIFIED: Trouble.Severity
    NOTE: Trouble.Severity
    WARNING: Trouble.Severity
    CRITICAL: Trouble.Severity
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    RUNBOOK_FIELD_NUMBER: _ClassVar[int]
    severity: Trouble.Severity
    kind: str
    subject: str
    text: str
    since_unix_ms: int
    runbook: str
    def __init__(self, severity: _Optional[_Union[Trouble.Severity, str]] = ..., kind: _Optional[str] = ..., subject: _Optional[str] = ..., text: _Optional[str] = ..., since_unix_ms: _Optional[int] = ..., runbook: _Optional[str] = ...) -> None: ...

class SpecialistView(_message.Message):
    __slots__ = ("name", "describe", "slo", "breaker", "candidate", "lanes", "fresh", "replicas", "rates", "cache_reuse", "usual_cache_reuse")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_FIELD_NUMBER: _ClassVar[int]
    SLO_FIELD_NUMBER: _ClassVar[int]
    BREAKER_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    RATES_FIELD_NUMBER: _ClassVar[int]
    CACHE_REUSE_FIELD_NUMBER: _ClassVar[int]
    USUAL_CACHE_REUSE_FIELD_NUMBER: _ClassVar[int]
    name: str
    describe: str
    slo: _slo_pb2.Slo
    breaker: _control_pb2.BreakerInfo
    candidate: _control_pb2.BreakerInfo
    lanes: _containers.RepeatedCompositeFieldContainer[_control_pb2.LaneInfo]
    fresh: bool
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaView]
    rates: Rates
    cache_reuse: float
    usual_cache_reuse: float
    def __init__(self, name: _Optional[str] = ..., describe: _Optional[str] = ..., slo: _Optional[_Union[_slo_pb2.Slo, _Mapping]] = ..., breaker: _Optional[_Union[_control_pb2.BreakerInfo, _Mapping]] = ..., candidate: _Optional[_Union[_control_pb2.BreakerInfo, _Mapping]] = ..., lanes: _Optional[_Iterable[_Union[_control_pb2.LaneInfo, _Mapping]]] = ..., fresh: _Optional[bool] = ..., replicas: _Optional[_Iterable[_Union[ReplicaView, _Mapping]]] = ..., rates: _Optional[_Union[Rates, _Mapping]] = ..., cache_reuse: _Optional[float] = ..., usual_cache_reuse: _Optional[float] = ...) -> None: ...

class Rates(_message.Message):
    __slots__ = ("requests", "answered", "refused", "failed", "spilled", "shadowed", "completion_tokens", "confidence", "unserved")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    SPILLED_FIELD_NUMBER: _ClassVar[int]
    SHADOWED_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    UNSERVED_FIELD_NUMBER: _ClassVar[int]
    requests: float
    answered: float
    refused: float
    failed: float
    spilled: float
    shadowed: float
    completion_tokens: float
    confidence: float
    unserved: float
    def __init__(self, requests: _Optional[float] = ..., answered: _Optional[float] = ..., refused: _Optional[float] = ..., failed: _Optional[float] = ..., spilled: _Optional[float] = ..., shadowed: _Optional[float] = ..., completion_tokens: _Optional[float] = ..., confidence: _Optional[float] = ..., unserved: _Optional[float] = ...) -> None: ...

class ReplicaView(_message.Message):
    __slots__ = ("info", "load")
    INFO_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    info: _control_pb2.ReplicaInfo
    load: _specialist_pb2.LoadReport
    def __init__(self, info: _Optional[_Union[_control_pb2.ReplicaInfo, _Mapping]] = ..., load: _Optional[_Union[_specialist_pb2.LoadReport, _Mapping]] = ...) -> None: ...

class ReceiptLine(_message.Message):
    __slots__ = ("request_id", "tenant", "at_unix_ms", "specialist", "primary", "replica", "intent", "outcome", "reason", "ttft", "total", "completion_tokens", "cache_hit_tokens", "prompt_tokens", "times_preempted", "spilled", "instead_of", "shadow", "attempts", "confidence")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    AT_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    SPECIALIST_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    INTENT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TTFT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TIMES_PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    SPILLED_FIELD_NUMBER: _ClassVar[int]
    INSTEAD_OF_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    at_unix_ms: int
    specialist: str
    primary: str
    replica: str
    intent: str
    outcome: str
    reason: _error_pb2_1.ErrorReason
    ttft: float
    total: float
    completion_tokens: int
    cache_hit_tokens: int
    prompt_tokens: int
    times_preempted: int
    spilled: bool
    instead_of: str
    shadow: str
    attempts: int
    confidence: float
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., at_unix_ms: _Optional[int] = ..., specialist: _Optional[str] = ..., primary: _Optional[str] = ..., replica: _Optional[str] = ..., intent: _Optional[str] = ..., outcome: _Optional[str] = ..., reason: _Optional[_Union[_error_pb2_1.ErrorReason, str]] = ..., ttft: _Optional[float] = ..., total: _Optional[float] = ..., completion_tokens: _Optional[int] = ..., cache_hit_tokens: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., times_preempted: _Optional[int] = ..., spilled: _Optional[bool] = ..., instead_of: _Optional[str] = ..., shadow: _Optional[str] = ..., attempts: _Optional[int] = ..., confidence: _Optional[float] = ...) -> None: ...

class History(_message.Message):
    __slots__ = ("step_seconds", "specialists")
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SPECIALISTS_FIELD_NUMBER: _ClassVar[int]
    step_seconds: float
    specialists: _containers.RepeatedCompositeFieldContainer[SpecialistHistory]
    def __init__(self, step_seconds: _Optional[float] = ..., specialists: _Optional[_Iterable[_Union[SpecialistHistory, _Mapping]]] = ...) -> None: ...

class SpecialistHistory(_message.Message):
    __slots__ = ("name", "points")
    NAME_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    points: _containers.RepeatedCompositeFieldContainer[Point]
    def __init__(self, name: _Optional[str] = ..., points: _Optional[_Iterable[_Union[Point, _Mapping]]] = ...) -> None: ...

class Point(_message.Message):
    __slots__ = ("at_unix_ms", "ttft_p95", "itl_p95", "admission_to_first_token_p95", "pass_rate", "requests", "refused", "completion_tokens", "waiting", "running", "blocks_used", "cache_reuse", "burn")
    AT_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    TTFT_P95_FIELD_NUMBER: _ClassVar[int]
    ITL_P95_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_TO_FIRST_TOKEN_P95_FIELD_NUMBER: _ClassVar[int]
    PASS_RATE_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_USED_FIELD_NUMBER: _ClassVar[int]
    CACHE_REUSE_FIELD_NUMBER: _ClassVar[int]
    BURN_FIELD_NUMBER: _ClassVar[int]
    at_unix_ms: int
    ttft_p95: float
    itl_p95: float
    admission_to_first_token_p95: float
    pass_rate: float
    requests: float
    refused: float
    completion_tokens: float
    waiting: int
    running: int
    blocks_used: float
    cache_reuse: float
    burn: float
    def __init__(self, at_unix_ms: _Optional[int] = ..., ttft_p95: _Optional[float] = ..., itl_p95: _Optional[float] = ..., admission_to_first_token_p95: _Optional[float] = ..., pass_rate: _Optional[float] = ..., requests: _Optional[float] = ..., refused: _Optional[float] = ..., completion_tokens: _Optional[float] = ..., waiting: _Optional[int] = ..., running: _Optional[int] = ..., blocks_used: _Optional[float] = ..., cache_reuse: _Optional[float] = ..., burn: _Optional[float] = ...) -> None: ...
