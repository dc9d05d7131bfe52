import datetime

from google.protobuf import any_pb2 as _any_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_MALFORMED: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_FIELD: _ClassVar[ErrorReason]
    ERROR_REASON_PROMPT_TOO_LONG: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_ADAPTER: _ClassVar[ErrorReason]
    ERROR_REASON_ADAPTER_REFUSED: _ClassVar[ErrorReason]
    ERROR_REASON_QUEUE_FULL: _ClassVar[ErrorReason]
    ERROR_REASON_DRAINING: _ClassVar[ErrorReason]
    ERROR_REASON_CALLER_STALLED: _ClassVar[ErrorReason]
    ERROR_REASON_DEADLINE: _ClassVar[ErrorReason]
    ERROR_REASON_ENGINE_FAILED: _ClassVar[ErrorReason]
    ERROR_REASON_REPLICA_FAILED: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_READY: _ClassVar[ErrorReason]
    ERROR_REASON_CANCELLED: _ClassVar[ErrorReason]
    ERROR_REASON_NO_SPECIALIST: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_SPECIALIST: _ClassVar[ErrorReason]
    ERROR_REASON_NO_REPLICA: _ClassVar[ErrorReason]
    ERROR_REASON_REPLICA_LOST: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_REQUEST: _ClassVar[ErrorReason]
    ERROR_REASON_DUPLICATE_REQUEST: _ClassVar[ErrorReason]
    ERROR_REASON_INTERNAL: _ClassVar[ErrorReason]
    ERROR_REASON_DEADLINE_UNREACHABLE: _ClassVar[ErrorReason]
    ERROR_REASON_WOULD_DELAY_OTHERS: _ClassVar[ErrorReason]
    ERROR_REASON_SHED: _ClassVar[ErrorReason]
    ERROR_REASON_BELOW_FLOOR: _ClassVar[ErrorReason]
    ERROR_REASON_DEMOTED: _ClassVar[ErrorReason]
    ERROR_REASON_CONFLICT: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_NAME: _ClassVar[ErrorReason]
    ERROR_REASON_STORE_UNAVAILABLE: _ClassVar[ErrorReason]
    ERROR_REASON_UNAUTHENTICATED: _ClassVar[ErrorReason]
    ERROR_REASON_FORBIDDEN: _ClassVar[ErrorReason]
    ERROR_REASON_KEY_LIMIT: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_JOB: _ClassVar[ErrorReason]
    ERROR_REASON_NO_TOOLS: _ClassVar[ErrorReason]
    ERROR_REASON_QUARANTINED: _ClassVar[ErrorReason]
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_MALFORMED: ErrorReason
ERROR_REASON_INVALID_FIELD: ErrorReason
ERROR_REASON_PROMPT_TOO_LONG: ErrorReason
ERROR_REASON_UNKNOWN_ADAPTER: ErrorReason
ERROR_REASON_ADAPTER_REFUSED: ErrorReason
ERROR_REASON_QUEUE_FULL: ErrorReason
ERROR_REASON_DRAINING: ErrorReason
ERROR_REASON_CALLER_STALLED: ErrorReason
ERROR_REASON_DEADLINE: ErrorReason
ERROR_REASON_ENGINE_FAILED: ErrorReason
ERROR_REASON_REPLICA_FAILED: ErrorReason
ERROR_REASON_NOT_READY: ErrorReason
ERROR_REASON_CANCELLED: ErrorReason
ERROR_REASON_NO_SPECIALIST: ErrorReason
ERROR_REASON_UNKNOWN_SPECIALIST: ErrorReason
ERROR_REASON_NO_REPLICA: ErrorReason
ERROR_REASON_REPLICA_LOST: ErrorReason
ERROR_REASON_UNKNOWN_REQUEST: ErrorReason
ERROR_REASON_DUPLICATE_REQUEST: ErrorReason
ERROR_REASON_INTERNAL: ErrorReason
ERROR_REASON_DEADLINE_UNREACHABLE: ErrorReason
ERROR_REASON_WOULD_DELAY_OTHERS: ErrorReason
ERROR_REASON_SHED: ErrorReason
ERROR_REASON_BELOW_FLOOR: ErrorReason
ERROR_REASON_DEMOTED: ErrorReason
ERROR_REASON_CONFLICT: ErrorReason
ERROR_REASON_UNKNOWN_NAME: ErrorReason
ERROR_REASON_STORE_UNAVAILABLE: ErrorReason
ERROR_REASON_UNAUTHENTICATED: ErrorReason
ERROR_REASON_FORBIDDEN: ErrorReason
ERROR_REASON_KEY_LIMIT: ErrorReason
ERROR_REASON_UNKNOWN_JOB: ErrorReason
ERROR_REASON_NO_TOOLS: ErrorReason
ERROR_REASON_QUARANTINED: ErrorReason

class Error(_message.Message):
    __slots__ = ("reason", "field", "limit", "value", "message", "retry_after_ms", "ticket", "place")
    REASON_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    reason: ErrorReason
    field: str
    limit: str
    value: str
    message: str
    retry_after_ms: int
    ticket: str
    place: Place
    def __init__(self, reason: _Optional[_Union[ErrorReason, str]] = ..., field: _Optional[str] = ..., limit: _Optional[str] = ..., value: _Optional[str] = ..., message: _Optional[str] = ..., retry_after_ms: _Optional[int] = ..., ticket: _Optional[str] = ..., place: _Optional[_Union[Place, _Mapping]] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("instance", "key", "kept_ms")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    KEPT_MS_FIELD_NUMBER: _ClassVar[int]
    instance: str
    key: str
    kept_ms: int
    def __init__(self, instance: _Optional[str] = ..., key: _Optional[str] = ..., kept_ms: _Optional[int] = ...) -> None: ...

class StatusDetails(_message.Message):
    __slots__ = ("code", "message", "details")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    details: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., details: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping]]] = ...) -> None: ...

class RetryInfo(_message.Message):
    __slots__ = ("retry_delay",)
    RETRY_DELAY_FIELD_NUMBER: _ClassVar[int]
    retry_delay: _duration_pb2.Duration
    def __init__(self, retry_delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...
