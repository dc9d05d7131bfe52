from octet.v1 import error_pb2 as _error_pb2
from octet.v1 import inference_pb2 as _inference_pb2
from octet.v1 import error_pb2 as _error_pb2_1
from octet.v1 import specialist_pb2 as _specialist_pb2
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
DECISION_SOURCE_UNSPECIFIED: _inference_pb2.DecisionSource
DECISION_SOURCE_FORCED: _inference_pb2.DecisionSource
DECISION_SOURCE_INTENT: _inference_pb2.DecisionSource
DECISION_SOURCE_RULE: _inference_pb2.DecisionSource
DECISION_SOURCE_CLASSIFIER: _inference_pb2.DecisionSource
DECISION_SOURCE_DEFAULT: _inference_pb2.DecisionSource
DECISION_SOURCE_BARE: _inference_pb2.DecisionSource

class JobStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_STATUS_UNSPECIFIED: _ClassVar[JobStatus]
    JOB_STATUS_QUEUED: _ClassVar[JobStatus]
    JOB_STATUS_RUNNING: _ClassVar[JobStatus]
    JOB_STATUS_DONE: _ClassVar[JobStatus]
    JOB_STATUS_FAILED: _ClassVar[JobStatus]
    JOB_STATUS_CANCELLED: _ClassVar[JobStatus]
JOB_STATUS_UNSPECIFIED: JobStatus
JOB_STATUS_QUEUED: JobStatus
JOB_STATUS_RUNNING: JobStatus
JOB_STATUS_DONE: JobStatus
JOB_STATUS_FAILED: JobStatus
JOB_STATUS_CANCELLED: JobStatus

class SubmitJobRequest(_message.Message):
    __slots__ = ("request", "idempotency_key")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    request: _inference_pb2.InferRequest
    idempotency_key: str
    def __init__(self, request: _Optional[_Union[_inference_pb2.InferRequest, _Mapping]] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "status", "submitted_unix_ms", "started_unix_ms", "ended_unix_ms", "text", "tool_calls", "partial", "error", "receipt", "attempts", "estimated_wait_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    STARTED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    ENDED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    id: str
    status: JobStatus
    submitted_unix_ms: int
    started_unix_ms: int
    ended_unix_ms: int
    text: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[_specialist_pb2.ToolCall]
    partial: bool
    error: _error_pb2_1.Error
    receipt: _inference_pb2.Receipt
    attempts: int
    estimated_wait_ms: int
    def __init__(self, id: _Optional[str] = ..., status: _Optional[_Union[JobStatus, str]] = ..., submitted_unix_ms: _Optional[int] = ..., started_unix_ms: _Optional[int] = ..., ended_unix_ms: _Optional[int] = ..., text: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[_specialist_pb2.ToolCall, _Mapping]]] = ..., partial: _Optional[bool] = ..., error: _Optional[_Union[_error_pb2_1.Error, _Mapping]] = ..., receipt: _Optional[_Union[_inference_pb2.Receipt, _Mapping]] = ..., attempts: _Optional[int] = ..., estimated_wait_ms: _Optional[int] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("id", "tenant")
    ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    id: str
    tenant: str
    def __init__(self, id: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("limit", "before", "tenant")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    before: str
    tenant: str
    def __init__(self, limit: _Optional[int] = ..., before: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ...) -> None: ...

class WatchJobRequest(_message.Message):
    __slots__ = ("id", "after")
    ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    id: str
    after: int
    def __init__(self, id: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class JobEvent(_message.Message):
    __slots__ = ("number", "status", "chunk", "restarted")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    RESTARTED_FIELD_NUMBER: _ClassVar[int]
    number: int
    status: Job
    chunk: _specialist_pb2.Chunk
    restarted: Restarted
    def __init__(self, number: _Optional[int] = ..., status: _Optional[_Union[Job, _Mapping]] = ..., chunk: _Optional[_Union[_specialist_pb2.Chunk, _Mapping]] = ..., restarted: _Optional[_Union[Restarted, _Mapping]] = ...) -> None: ...

class Restarted(_message.Message):
    __slots__ = ("attempt",)
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    def __init__(self, attempt: _Optional[int] = ...) -> None: ...

class CancelJobRequest(_message.Message):
    __slots__ = ("id", "tenant")
    ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    id: str
    tenant: str
    def __init__(self, id: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...
