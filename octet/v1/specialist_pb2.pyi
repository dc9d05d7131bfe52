from octet.v1 import error_pb2 as _error_pb2
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
ERROR_REASON_QUARANTINED: _error_pb2.ErrorReason

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]
    FINISH_REASON_DEADLINE: _ClassVar[FinishReason]
    FINISH_REASON_ERROR: _ClassVar[FinishReason]
    FINISH_REASON_SHED: _ClassVar[FinishReason]

class MissReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MISS_REASON_UNSPECIFIED: _ClassVar[MissReason]
    MISS_REASON_FIRST_TIME: _ClassVar[MissReason]
    MISS_REASON_EVICTED: _ClassVar[MissReason]
    MISS_REASON_OTHER_ADAPTER: _ClassVar[MissReason]
    MISS_REASON_DIVERGED: _ClassVar[MissReason]
    MISS_REASON_CACHE_OFF: _ClassVar[MissReason]
    MISS_REASON_NO_SESSION: _ClassVar[MissReason]
    MISS_REASON_NO_BOUNDARY: _ClassVar[MissReason]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_CANCELLED: FinishReason
FINISH_REASON_DEADLINE: FinishReason
FINISH_REASON_ERROR: FinishReason
FINISH_REASON_SHED: FinishReason
MISS_REASON_UNSPECIFIED: MissReason
MISS_REASON_FIRST_TIME: MissReason
MISS_REASON_EVICTED: MissReason
MISS_REASON_OTHER_ADAPTER: MissReason
MISS_REASON_DIVERGED: MissReason
MISS_REASON_CACHE_OFF: MissReason
MISS_REASON_NO_SESSION: MissReason
MISS_REASON_NO_BOUNDARY: MissReason

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "text", "tokens", "chat", "adapters", "sampling", "seed", "max_tokens", "min_tokens", "stop", "ignore_eos", "priority", "timeout_ms", "first_token_timeout_ms", "tenant_salt", "context_size", "shadow", "session_key", "structure", "embed", "draft_window", "place_for", "place", "wait_ms")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TENANT_SALT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_SIZE_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    STRUCTURE_FIELD_NUMBER: _ClassVar[int]
    EMBED_FIELD_NUMBER: _ClassVar[int]
    DRAFT_WINDOW_FIELD_NUMBER: _ClassVar[int]
    PLACE_FOR_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    text: str
    tokens: TokenIds
    chat: Chat
    adapters: _containers.RepeatedScalarFieldContainer[str]
    sampling: Sampling
    seed: int
    max_tokens: int
    min_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    ignore_eos: bool
    priority: int
    timeout_ms: int
    first_token_timeout_ms: int
    tenant_salt: bytes
    context_size: int
    shadow: bool
    session_key: bytes
    structure: Structure
    embed: bool
    draft_window: int
    place_for: str
    place: str
    wait_ms: int
    def __init__(self, request_id: _Optional[str] = ..., text: _Optional[str] = ..., tokens: _Optional[_Union[TokenIds, _Mapping]] = ..., chat: _Optional[_Union[Chat, _Mapping]] = ..., adapters: _Optional[_Iterable[str]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., seed: _Optional[int] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., ignore_eos: _Optional[bool] = ..., priority: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., first_token_timeout_ms: _Optional[int] = ..., tenant_salt: _Optional[bytes] = ..., context_size: _Optional[int] = ..., shadow: _Optional[bool] = ..., session_key: _Optional[bytes] = ..., structure: _Optional[_Union[Structure, _Mapping]] = ..., embed: _Optional[bool] = ..., draft_window: _Optional[int] = ..., place_for: _Optional[str] = ..., place: _Optional[str] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("starts", "cancels", "credits")
    STARTS_FIELD_NUMBER: _ClassVar[int]
    CANCELS_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    starts: _containers.RepeatedCompositeFieldContainer[StreamStart]
    cancels: _containers.RepeatedScalarFieldContainer[int]
    credits: _containers.RepeatedCompositeFieldContainer[StreamCredit]
    def __init__(self, starts: _Optional[_Iterable[_Union[StreamStart, _Mapping]]] = ..., cancels: _Optional[_Iterable[int]] = ..., credits: _Optional[_Iterable[_Union[StreamCredit, _Mapping]]] = ...) -> None: ...

class StreamStart(_message.Message):
    __slots__ = ("stream", "request", "timeout_us", "credit", "traceparent", "tracestate")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_US_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    stream: int
    request: bytes
    timeout_us: int
    credit: int
    traceparent: str
    tracestate: str
    def __init__(self, stream: _Optional[int] = ..., request: _Optional[bytes] = ..., timeout_us: _Optional[int] = ..., credit: _Optional[int] = ..., traceparent: _Optional[str] = ..., tracestate: _Optional[str] = ...) -> None: ...

class StreamCredit(_message.Message):
    __slots__ = ("stream", "bytes")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    stream: int
    bytes: int
    def __init__(self, stream: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("hello", "streams", "events", "ends")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    hello: AttachHello
    streams: _containers.RepeatedScalarFieldContainer[int]
    events: _containers.RepeatedScalarFieldContainer[bytes]
    ends: _containers.RepeatedCompositeFieldContainer[StreamEnd]
    def __init__(self, hello: _Optional[_Union[AttachHello, _Mapping]] = ..., streams: _Optional[_Iterable[int]] = ..., events: _Optional[_Iterable[bytes]] = ..., ends: _Optional[_Iterable[_Union[StreamEnd, _Mapping]]] = ...) -> None: ...

class AttachHello(_message.Message):
    __slots__ = ("max_streams",)
    MAX_STREAMS_FIELD_NUMBER: _ClassVar[int]
    max_streams: int
    def __init__(self, max_streams: _Optional[int] = ...) -> None: ...

class StreamEnd(_message.Message):
    __slots__ = ("stream", "code", "message", "error")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    stream: int
    code: int
    message: str
    error: _error_pb2.Error
    def __init__(self, stream: _Optional[int] = ..., code: _Optional[int] = ..., message: _Optional[str] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ...) -> None: ...

class ReleasePlacesRequest(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, keys: _Optional[_Iterable[str]] = ...) -> None: ...

class ReleasePlacesResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Structure(_message.Message):
    __slots__ = ("json_object", "json_schema", "regex", "choice")
    JSON_OBJECT_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    json_object: bool
    json_schema: str
    regex: str
    choice: Choices
    def __init__(self, json_object: _Optional[bool] = ..., json_schema: _Optional[str] = ..., regex: _Optional[str] = ..., choice: _Optional[_Union[Choices, _Mapping]] = ...) -> None: ...

class Choices(_message.Message):
    __slots__ = ("choices",)
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    choices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, choices: _Optional[_Iterable[str]] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class CountTokensResponse(_message.Message):
    __slots__ = ("prompt_tokens",)
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ...) -> None: ...

class Chat(_message.Message):
    __slots__ = ("messages", "tools", "tool_choice")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    tools: _containers.RepeatedCompositeFieldContainer[Tool]
    tool_choice: ToolChoice
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., tools: _Optional[_Iterable[_Union[Tool, _Mapping]]] = ..., tool_choice: _Optional[_Union[ToolChoice, _Mapping]] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("role", "content", "tool_calls", "tool_call_id")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    tool_call_id: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., tool_call_id: _Optional[str] = ...) -> None: ...

class Tool(_message.Message):
    __slots__ = ("name", "description", "parameters", "strict")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    parameters: str
    strict: bool
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., parameters: _Optional[str] = ..., strict: _Optional[bool] = ...) -> None: ...

class ToolChoice(_message.Message):
    __slots__ = ("mode", "name", "one_at_most")
    class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        AUTO: _ClassVar[ToolChoice.Mode]
        NONE: _ClassVar[ToolChoice.Mode]
        REQUIRED: _ClassVar[ToolChoice.Mode]
    AUTO: ToolChoice.Mode
    NONE: ToolChoice.Mode
    REQUIRED: ToolChoice.Mode
    MODE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ONE_AT_MOST_FIELD_NUMBER: _ClassVar[int]
    mode: ToolChoice.Mode
    name: str
    one_at_most: bool
    def __init__(self, mode: _Optional[_Union[ToolChoice.Mode, str]] = ..., name: _Optional[str] = ..., one_at_most: _Optional[bool] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("id", "name", "arguments")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    arguments: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "num_logprobs")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.RepeatedCompositeFieldContainer[LogitBias]
    num_logprobs: int
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., typical_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Iterable[_Union[LogitBias, _Mapping]]] = ..., num_logprobs: _Optional[int] = ...) -> None: ...

class LogitBias(_message.Message):
    __slots__ = ("token", "bias")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    token: int
    bias: float
    def __init__(self, token: _Optional[int] = ..., bias: _Optional[float] = ...) -> None: ...

class GenerateEvent(_message.Message):
    __slots__ = ("accepted", "chunk", "usage")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    accepted: Accepted
    chunk: Chunk
    usage: Usage
    def __init__(self, accepted: _Optional[_Union[Accepted, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class Lane(_message.Message):
    __slots__ = ("specialist", "revision", "adapter_digests")
    SPECIALIST_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    specialist: str
    revision: str
    adapter_digests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, specialist: _Optional[str] = ..., revision: _Optional[str] = ..., adapter_digests: _Optional[_Iterable[str]] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("request_id", "lane", "prompt_tokens", "queue_position", "max_tokens", "seed", "forecast", "reserved")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    FORECAST_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    lane: Lane
    prompt_tokens: int
    queue_position: int
    max_tokens: int
    seed: int
    forecast: Forecast
    reserved: bool
    def __init__(self, request_id: _Optional[str] = ..., lane: _Optional[_Union[Lane, _Mapping]] = ..., prompt_tokens: _Optional[int] = ..., queue_position: _Optional[int] = ..., max_tokens: _Optional[int] = ..., seed: _Optional[int] = ..., forecast: _Optional[_Union[Forecast, _Mapping]] = ..., reserved: _Optional[bool] = ...) -> None: ...

class Forecast(_message.Message):
    __slots__ = ("wait", "total", "slack", "displaced", "set_aside", "first")
    WAIT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    SLACK_FIELD_NUMBER: _ClassVar[int]
    DISPLACED_FIELD_NUMBER: _ClassVar[int]
    SET_ASIDE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    wait: float
    total: float
    slack: float
    displaced: int
    set_aside: int
    first: float
    def __init__(self, wait: _Optional[float] = ..., total: _Optional[float] = ..., slack: _Optional[float] = ..., displaced: _Optional[int] = ..., set_aside: _Optional[int] = ..., first: _Optional[float] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("text", "token_ids", "logprobs", "tool_calls", "embedding")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCallPart]
    embedding: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCallPart, _Mapping]]] = ..., embedding: _Optional[_Iterable[float]] = ...) -> None: ...

class ToolCallPart(_message.Message):
    __slots__ = ("index", "id", "name", "arguments")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    index: int
    id: str
    name: str
    arguments: str
    def __init__(self, index: _Optional[int] = ..., id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("chosen", "top", "piece")
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    chosen: float
    top: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    piece: bytes
    def __init__(self, chosen: _Optional[float] = ..., top: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., piece: _Optional[bytes] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token", "logprob", "piece")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    token: int
    logprob: float
    piece: bytes
    def __init__(self, token: _Optional[int] = ..., logprob: _Optional[float] = ..., piece: _Optional[bytes] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("finish_reason", "stop_string", "prompt_tokens", "completion_tokens", "cache_hit_tokens", "times_preempted", "timings", "miss_reason", "drafted_tokens", "accepted_tokens")
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TIMES_PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    MISS_REASON_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    finish_reason: FinishReason
    stop_string: str
    prompt_tokens: int
    completion_tokens: int
    cache_hit_tokens: int
    times_preempted: int
    timings: Timings
    miss_reason: MissReason
    drafted_tokens: int
    accepted_tokens: int
    def __init__(self, finish_reason: _Optional[_Union[FinishReason, str]] = ..., stop_string: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cache_hit_tokens: _Optional[int] = ..., times_preempted: _Optional[int] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., miss_reason: _Optional[_Union[MissReason, str]] = ..., drafted_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queued", "prefill", "decode", "total", "preempted")
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    queued: float
    prefill: float
    decode: float
    total: float
    preempted: float
    def __init__(self, queued: _Optional[float] = ..., prefill: _Optional[float] = ..., decode: _Optional[float] = ..., total: _Optional[float] = ..., preempted: _Optional[float] = ...) -> None: ...

class WatchLoadRequest(_message.Message):
    __slots__ = ("min_interval_ms", "heartbeat_ms")
    MIN_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    min_interval_ms: int
    heartbeat_ms: int
    def __init__(self, min_interval_ms: _Optional[int] = ..., heartbeat_ms: _Optional[int] = ...) -> None: ...

class LoadReport(_message.Message):
    __slots__ = ("waiting", "running", "blocks", "preempting", "times_preempted", "prefill_rate", "decode_rate", "drain_rate", "adapters", "draining", "max_running", "max_waiting", "revision", "refusing", "shadows", "usual_wait", "estimate_error", "prompt_tokens", "cache_hit_tokens", "evicted_blocks", "instance", "started_unix_ms", "previous_end", "drafted_tokens", "accepted_tokens")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTING_FIELD_NUMBER: _ClassVar[int]
    TIMES_PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    PREFILL_RATE_FIELD_NUMBER: _ClassVar[int]
    DECODE_RATE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_RATE_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNNING_FIELD_NUMBER: _ClassVar[int]
    MAX_WAITING_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    REFUSING_FIELD_NUMBER: _ClassVar[int]
    SHADOWS_FIELD_NUMBER: _ClassVar[int]
    USUAL_WAIT_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_ERROR_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EVICTED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    STARTED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_END_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    waiting: int
    running: int
    blocks: Blocks
    preempting: bool
    times_preempted: int
    prefill_rate: float
    decode_rate: float
    drain_rate: float
    adapters: _containers.RepeatedCompositeFieldContainer[ResidentAdapter]
    draining: bool
    max_running: int
    max_waiting: int
    revision: str
    refusing: bool
    shadows: int
    usual_wait: float
    estimate_error: EstimateError
    prompt_tokens: int
    cache_hit_tokens: int
    evicted_blocks: int
    instance: str
    started_unix_ms: int
    previous_end: ProcessEnd
    drafted_tokens: int
    accepted_tokens: int
    def __init__(self, waiting: _Optional[int] = ..., running: _Optional[int] = ..., blocks: _Optional[_Union[Blocks, _Mapping]] = ..., preempting: _Optional[bool] = ..., times_preempted: _Optional[int] = ..., prefill_rate: _Optional[float] = ..., decode_rate: _Optional[float] = ..., drain_rate: _Optional[float] = ..., adapters: _Optional[_Iterable[_Union[ResidentAdapter, _Mapping]]] = ..., draining: _Optional[bool] = ..., max_running: _Optional[int] = ..., max_waiting: _Optional[int] = ..., revision: _Optional[str] = ..., refusing: _Optional[bool] = ..., shadows: _Optional[int] = ..., usual_wait: _Optional[float] = ..., estimate_error: _Optional[_Union[EstimateError, _Mapping]] = ..., prompt_tokens: _Optional[int] = ..., cache_hit_tokens: _Optional[int] = ..., evicted_blocks: _Optional[int] = ..., instance: _Optional[str] = ..., started_unix_ms: _Optional[int] = ..., previous_end: _Optional[_Union[ProcessEnd, _Mapping]] = ..., drafted_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ...) -> None: ...

class ProcessEnd(_message.Message):
    __slots__ = ("kind", "text", "number")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    kind: str
    text: str
    number: int
    def __init__(self, kind: _Optional[str] = ..., text: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class GetMetricsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetMetricsResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: bytes
    def __init__(self, text: _Optional[bytes] = ...) -> None: ...

class EstimateError(_message.Message):
    __slots__ = ("step_p50", "step_p90", "total_p50", "total_p90", "num_requests", "first_p50", "first_p90", "stated_p50", "stated_p90")
    STEP_P50_FIELD_NUMBER: _ClassVar[int]
    STEP_P90_FIELD_NUMBER: _ClassVar[int]
    TOTAL_P50_FIELD_NUMBER: _ClassVar[int]
    TOTAL_P90_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_P50_FIELD_NUMBER: _ClassVar[int]
    FIRST_P90_FIELD_NUMBER: _ClassVar[int]
    STATED_P50_FIELD_NUMBER: _ClassVar[int]
    STATED_P90_FIELD_NUMBER: _ClassVar[int]
    step_p50: float
    step_p90: float
    total_p50: float
    total_p90: float
    num_requests: int
    first_p50: float
    first_p90: float
    stated_p50: float
    stated_p90: float
    def __init__(self, step_p50: _Optional[float] = ..., step_p90: _Optional[float] = ..., total_p50: _Optional[float] = ..., total_p90: _Optional[float] = ..., num_requests: _Optional[int] = ..., first_p50: _Optional[float] = ..., first_p90: _Optional[float] = ..., stated_p50: _Optional[float] = ..., stated_p90: _Optional[float] = ...) -> None: ...

class Blocks(_message.Message):
    __slots__ = ("total", "free", "cached", "used")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    total: int
    free: int
    cached: int
    used: int
    def __init__(self, total: _Optional[int] = ..., free: _Optional[int] = ..., cached: _Optional[int] = ..., used: _Optional[int] = ...) -> None: ...

class ResidentAdapter(_message.Message):
    __slots__ = ("name", "digest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: str
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class LoadAdapterRequest(_message.Message):
    __slots__ = ("name", "path", "digest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    path: str
    digest: str
    def __init__(self, name: _Optional[str] = ..., path: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class LoadAdapterResponse(_message.Message):
    __slots__ = ("adapter",)
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    adapter: ResidentAdapter
    def __init__(self, adapter: _Optional[_Union[ResidentAdapter, _Mapping]] = ...) -> None: ...

class UnloadAdapterRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class UnloadAdapterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("finished",)
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    finished: int
    def __init__(self, finished: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("lane", "version", "model", "kernels", "context", "block_size", "num_blocks", "adapters", "limits", "engine")
    LANE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    lane: Lane
    version: str
    model: Model
    kernels: _containers.RepeatedCompositeFieldContainer[Kernel]
    context: int
    block_size: int
    num_blocks: int
    adapters: _containers.RepeatedCompositeFieldContainer[ResidentAdapter]
    limits: _containers.RepeatedCompositeFieldContainer[Limit]
    engine: str
    def __init__(self, lane: _Optional[_Union[Lane, _Mapping]] = ..., version: _Optional[str] = ..., model: _Optional[_Union[Model, _Mapping]] = ..., kernels: _Optional[_Iterable[_Union[Kernel, _Mapping]]] = ..., context: _Optional[int] = ..., block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., adapters: _Optional[_Iterable[_Union[ResidentAdapter, _Mapping]]] = ..., limits: _Optional[_Iterable[_Union[Limit, _Mapping]]] = ..., engine: _Optional[str] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "architecture", "vocab_size", "num_layers", "hidden_size", "num_heads", "num_kv_heads", "context")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_HEADS_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    name: str
    architecture: str
    vocab_size: int
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    context: int
    def __init__(self, name: _Optional[str] = ..., architecture: _Optional[str] = ..., vocab_size: _Optional[int] = ..., num_layers: _Optional[int] = ..., hidden_size: _Optional[int] = ..., num_heads: _Optional[int] = ..., num_kv_heads: _Optional[int] = ..., context: _Optional[int] = ...) -> None: ...

class Kernel(_message.Message):
    __slots__ = ("op", "choice", "why")
    OP_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    op: str
    choice: str
    why: str
    def __init__(self, op: _Optional[str] = ..., choice: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class Limit(_message.Message):
    __slots__ = ("field", "limit")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    field: str
    limit: str
    def __init__(self, field: _Optional[str] = ..., limit: _Optional[str] = ...) -> None: ...
