from octet.v1 import error_pb2 as _error_pb2
from octet.v1 import specialist_pb2 as _specialist_pb2
from octet.v1 import error_pb2 as _error_pb2_1
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union
from octet.v1.error_pb2 import Error as Error
from octet.v1.error_pb2 import Place as Place
from octet.v1.error_pb2 import StatusDetails as StatusDetails
from octet.v1.error_pb2 import RetryInfo as RetryInfo
from octet.v1.error_pb2 import ErrorReason as ErrorReason
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

class DecisionSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DECISION_SOURCE_UNSPECIFIED: _ClassVar[DecisionSource]
    DECISION_SOURCE_FORCED: _ClassVar[DecisionSource]
    DECISION_SOURCE_INTENT: _ClassVar[DecisionSource]
    DECISION_SOURCE_RULE: _ClassVar[DecisionSource]
    DECISION_SOURCE_CLASSIFIER: _ClassVar[DecisionSource]
    DECISION_SOURCE_DEFAULT: _ClassVar[DecisionSource]
    DECISION_SOURCE_BARE: _ClassVar[DecisionSource]
DECISION_SOURCE_UNSPECIFIED: DecisionSource
DECISION_SOURCE_FORCED: DecisionSource
DECISION_SOURCE_INTENT: DecisionSource
DECISION_SOURCE_RULE: DecisionSource
DECISION_SOURCE_CLASSIFIER: DecisionSource
DECISION_SOURCE_DEFAULT: DecisionSource
DECISION_SOURCE_BARE: DecisionSource

class InferRequest(_message.Message):
    __slots__ = ("request_id", "prompt", "template", "body", "messages", "intent", "force_specialists", "exclude_specialists", "adapters", "max_experts", "sampling", "seed", "max_tokens", "min_tokens", "stop", "ignore_eos", "context_size", "priority", "timeout_ms", "first_token_timeout_ms", "session_id", "user_id", "tenant_salt", "metadata", "structure", "tools", "tool_choice", "validate", "embed", "draft_window", "ticket", "wait_ms")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    INTENT_FIELD_NUMBER: _ClassVar[int]
    FORCE_SPECIALISTS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_SPECIALISTS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    MAX_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_SIZE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_SALT_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    STRUCTURE_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_FIELD_NUMBER: _ClassVar[int]
    EMBED_FIELD_NUMBER: _ClassVar[int]
    DRAFT_WINDOW_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt: str
    template: str
    body: str
    messages: _containers.RepeatedCompositeFieldContainer[_specialist_pb2.Message]
    intent: str
    force_specialists: _containers.RepeatedScalarFieldContainer[str]
    exclude_specialists: _containers.RepeatedScalarFieldContainer[str]
    adapters: _containers.RepeatedScalarFieldContainer[str]
    max_experts: int
    sampling: _specialist_pb2.Sampling
    seed: int
    max_tokens: int
    min_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    ignore_eos: bool
    context_size: int
    priority: int
    timeout_ms: int
    first_token_timeout_ms: int
    session_id: str
    user_id: str
    tenant_salt: bytes
    metadata: _containers.ScalarMap[str, str]
    structure: _specialist_pb2.Structure
    tools: _containers.RepeatedCompositeFieldContainer[_specialist_pb2.Tool]
    tool_choice: _specialist_pb2.ToolChoice
    validate: bool
    embed: bool
    draft_window: int
    ticket: str
    wait_ms: int
    def __init__(self, request_id: _Optional[str] = ..., prompt: _Optional[str] = ..., template: _Optional[str] = ..., body: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[_specialist_pb2.Message, _Mapping]]] = ..., intent: _Optional[str] = ..., force_specialists: _Optional[_Iterable[str]] = ..., exclude_specialists: _Optional[_Iterable[str]] = ..., adapters: _Optional[_Iterable[str]] = ..., max_experts: _Optional[int] = ..., sampling: _Optional[_Union[_specialist_pb2.Sampling, _Mapping]] = ..., seed: _Optional[int] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., ignore_eos: _Optional[bool] = ..., context_size: _Optional[int] = ..., priority: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., first_token_timeout_ms: _Optional[int] = ..., session_id: _Optional[str] = ..., user_id: _Optional[str] = ..., tenant_salt: _Optional[bytes] = ..., metadata: _Optional[_Mapping[str, str]] = ..., structure: _Optional[_Union[_specialist_pb2.Structure, _Mapping]] = ..., tools: _Optional[_Iterable[_Union[_specialist_pb2.Tool, _Mapping]]] = ..., tool_choice: _Optional[_Union[_specialist_pb2.ToolChoice, _Mapping]] = ..., validate: _Optional[bool] = ..., embed: _Optional[bool] = ..., draft_window: _Optional[int] = ..., ticket: _Optional[str] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class InferEvent(_message.Message):
    __slots__ = ("routed", "chunk", "receipt")
    ROUTED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    routed: Receipt
    chunk: _specialist_pb2.Chunk
    receipt: Receipt
    def __init__(self, routed: _Optional[_Union[Receipt, _Mapping]] = ..., chunk: _Optional[_Union[_specialist_pb2.Chunk, _Mapping]] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ...) -> None: ...

class InferResponse(_message.Message):
    __slots__ = ("text", "token_ids", "logprobs", "receipt", "tool_calls", "embedding")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_specialist_pb2.TokenLogprobs]
    receipt: Receipt
    tool_calls: _containers.RepeatedCompositeFieldContainer[_specialist_pb2.ToolCall]
    embedding: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_specialist_pb2.TokenLogprobs, _Mapping]]] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ..., tool_calls: _Optional[_Iterable[_Union[_specialist_pb2.ToolCall, _Mapping]]] = ..., embedding: _Optional[_Iterable[float]] = ...) -> None: ...

class CountResponse(_message.Message):
    __slots__ = ("prompt_tokens", "specialist")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SPECIALIST_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    specialist: str
    def __init__(self, prompt_tokens: _Optional[int] = ..., specialist: _Optional[str] = ...) -> None: ...

class GetReceiptRequest(_message.Message):
    __slots__ = ("request_id", "tenant")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Decision(_message.Message):
    __slots__ = ("source", "decided_by", "why", "primary", "second_choice", "distribution", "confidence", "intent", "task", "adapters", "sampling", "max_tokens", "notes", "request_digest", "config_digest", "classifier_digest", "max_tokens_from")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DECIDED_BY_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    SECOND_CHOICE_FIELD_NUMBER: _ClassVar[int]
    DISTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    INTENT_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CONFIG_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CLASSIFIER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FROM_FIELD_NUMBER: _ClassVar[int]
    source: DecisionSource
    decided_by: str
    why: str
    primary: str
    second_choice: str
    distribution: _containers.RepeatedCompositeFieldContainer[Score]
    confidence: float
    intent: str
    task: str
    adapters: _containers.RepeatedScalarFieldContainer[str]
    sampling: _specialist_pb2.Sampling
    max_tokens: int
    notes: _containers.RepeatedScalarFieldContainer[str]
    request_digest: str
    config_digest: str
    classifier_digest: str
    max_tokens_from: str
    def __init__(self, source: _Optional[_Union[DecisionSource, str]] = ..., decided_by: _Optional[str] = ..., why: _Optional[str] = ..., primary: _Optional[str] = ..., second_choice: _Optional[str] = ..., distribution: _Optional[_Iterable[_Union[Score, _Mapping]]] = ..., confidence: _Optional[float] = ..., intent: _Optional[str] = ..., task: _Optional[str] = ..., adapters: _Optional[_Iterable[str]] = ..., sampling: _Optional[_Union[_specialist_pb2.Sampling, _Mapping]] = ..., max_tokens: _Optional[int] = ..., notes: _Optional[_Iterable[str]] = ..., request_digest: _Optional[str] = ..., config_digest: _Optional[str] = ..., classifier_digest: _Optional[str] = ..., max_tokens_from: _Optional[str] = ...) -> None: ...

class Score(_message.Message):
    __slots__ = ("specialist", "probability")
    SPECIALIST_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    specialist: str
    probability: float
    def __init__(self, specialist: _Optional[str] = ..., probability: _Optional[float] = ...) -> None: ...

class Attempt(_message.Message):
    __slots__ = ("specialist", "replica", "reason", "message", "seconds", "began", "span_id")
    SPECIALIST_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    BEGAN_FIELD_NUMBER: _ClassVar[int]
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    specialist: str
    replica: str
    reason: _error_pb2_1.ErrorReason
    message: str
    seconds: float
    began: float
    span_id: str
    def __init__(self, specialist: _Optional[str] = ..., replica: _Optional[str] = ..., reason: _Optional[_Union[_error_pb2_1.ErrorReason, str]] = ..., message: _Optional[str] = ..., seconds: _Optional[float] = ..., began: _Optional[float] = ..., span_id: _Optional[str] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("request_id", "decision", "specialist", "replica", "lane", "attempts", "accepted", "usage", "timings", "error", "breaker", "trace_id", "created_unix_ms", "priority", "session_id", "between", "session_source", "validation", "caller", "tenant", "span_id", "experts_used")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    SPECIALIST_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    BREAKER_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    BETWEEN_FIELD_NUMBER: _ClassVar[int]
    SESSION_SOURCE_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    EXPERTS_USED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    decision: Decision
    specialist: str
    replica: str
    lane: _specialist_pb2.Lane
    attempts: _containers.RepeatedCompositeFieldContainer[Attempt]
    accepted: _specialist_pb2.Accepted
    usage: _specialist_pb2.Usage
    timings: RouterTimings
    error: _error_pb2_1.Error
    breaker: str
    trace_id: str
    created_unix_ms: int
    priority: int
    session_id: str
    between: Between
    session_source: str
    validation: Validation
    caller: str
    tenant: str
    span_id: str
    experts_used: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_id: _Optional[str] = ..., decision: _Optional[_Union[Decision, _Mapping]] = ..., specialist: _Optional[str] = ..., replica: _Optional[str] = ..., lane: _Optional[_Union[_specialist_pb2.Lane, _Mapping]] = ..., attempts: _Optional[_Iterable[_Union[Attempt, _Mapping]]] = ..., accepted: _Optional[_Union[_specialist_pb2.Accepted, _Mapping]] = ..., usage: _Optional[_Union[_specialist_pb2.Usage, _Mapping]] = ..., timings: _Optional[_Union[RouterTimings, _Mapping]] = ..., error: _Optional[_Union[_error_pb2_1.Error, _Mapping]] = ..., breaker: _Optional[str] = ..., trace_id: _Optional[str] = ..., created_unix_ms: _Optional[int] = ..., priority: _Optional[int] = ..., session_id: _Optional[str] = ..., between: _Optional[_Union[Between, _Mapping]] = ..., session_source: _Optional[str] = ..., validation: _Optional[_Union[Validation, _Mapping]] = ..., caller: _Optional[str] = ..., tenant: _Optional[str] = ..., span_id: _Optional[str] = ..., experts_used: _Optional[_Iterable[str]] = ...) -> None: ...

class Validation(_message.Message):
    __slots__ = ("verifier", "outcome", "detail", "seconds")
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    verifier: str
    outcome: str
    detail: str
    seconds: float
    def __init__(self, verifier: _Optional[str] = ..., outcome: _Optional[str] = ..., detail: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class Between(_message.Message):
    __slots__ = ("correctness", "instead_of", "why", "lane", "shadow", "shadow_threshold", "priority_floor", "knobs_by", "spilled", "lead")
    CORRECTNESS_FIELD_NUMBER: _ClassVar[int]
    INSTEAD_OF_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    SHADOW_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FLOOR_FIELD_NUMBER: _ClassVar[int]
    KNOBS_BY_FIELD_NUMBER: _ClassVar[int]
    SPILLED_FIELD_NUMBER: _ClassVar[int]
    LEAD_FIELD_NUMBER: _ClassVar[int]
    correctness: str
    instead_of: str
    why: str
    lane: str
    shadow: ShadowOrder
    shadow_threshold: float
    priority_floor: int
    knobs_by: str
    spilled: bool
    lead: str
    def __init__(self, correctness: _Optional[str] = ..., instead_of: _Optional[str] = ..., why: _Optional[str] = ..., lane: _Optional[str] = ..., shadow: _Optional[_Union[ShadowOrder, _Mapping]] = ..., shadow_threshold: _Optional[float] = ..., priority_floor: _Optional[int] = ..., knobs_by: _Optional[str] = ..., spilled: _Optional[bool] = ..., lead: _Optional[str] = ...) -> None: ...

class ShadowOrder(_message.Message):
    __slots__ = ("specialist", "adapters", "why", "outcome", "reason", "replica")
    SPECIALIST_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    specialist: str
    adapters: _containers.RepeatedScalarFieldContainer[str]
    why: str
    outcome: str
    reason: str
    replica: str
    def __init__(self, specialist: _Optional[str] = ..., adapters: _Optional[_Iterable[str]] = ..., why: _Optional[str] = ..., outcome: _Optional[str] = ..., reason: _Optional[str] = ..., replica: _Optional[str] = ...) -> None: ...

class RouterTimings(_message.Message):
    __slots__ = ("decided", "dispatched", "accepted", "first_chunk", "total", "answered", "waited")
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    DISPATCHED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    FIRST_CHUNK_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    WAITED_FIELD_NUMBER: _ClassVar[int]
    decided: float
    dispatched: float
    accepted: float
    first_chunk: float
    total: float
    answered: float
    waited: float
    def __init__(self, decided: _Optional[float] = ..., dispatched: _Optional[float] = ..., accepted: _Optional[float] = ..., first_chunk: _Optional[float] = ..., total: _Optional[float] = ..., answered: _Optional[float] = ..., waited: _Optional[float] = ...) -> None: ...
