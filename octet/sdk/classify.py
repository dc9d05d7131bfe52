"""Which error a status is: the server's reason first, and the bare status code where it gave none."""

import grpc

from octet.sdk.errors import (
    Busy,
    CallerStalled,
    Cancelled,
    DeadlineExceeded,
    Forbidden,
    InvalidRequest,
    NoSpecialist,
    NotFound,
    OctetError,
    ReplicaLost,
    ServerError,
    Unauthenticated,
    Unavailable,
)
from octet.v1 import error_pb2 as wire

_BY_REASON: dict[int, type[OctetError]] = {
    wire.ERROR_REASON_MALFORMED: InvalidRequest,
    wire.ERROR_REASON_INVALID_FIELD: InvalidRequest,
    wire.ERROR_REASON_PROMPT_TOO_LONG: InvalidRequest,
    wire.ERROR_REASON_UNKNOWN_ADAPTER: NotFound,
    wire.ERROR_REASON_ADAPTER_REFUSED: InvalidRequest,
    wire.ERROR_REASON_QUEUE_FULL: Busy,
    wire.ERROR_REASON_DRAINING: Unavailable,
    wire.ERROR_REASON_CALLER_STALLED: CallerStalled,
    wire.ERROR_REASON_DEADLINE: DeadlineExceeded,
    wire.ERROR_REASON_ENGINE_FAILED: ServerError,
    wire.ERROR_REASON_REPLICA_FAILED: ServerError,
    wire.ERROR_REASON_NOT_READY: Unavailable,
    wire.ERROR_REASON_CANCELLED: Cancelled,
    wire.ERROR_REASON_NO_SPECIALIST: NoSpecialist,
    wire.ERROR_REASON_UNKNOWN_SPECIALIST: NotFound,
    wire.ERROR_REASON_NO_REPLICA: Unavailable,
    wire.ERROR_REASON_REPLICA_LOST: ReplicaLost,
    wire.ERROR_REASON_UNKNOWN_REQUEST: NotFound,
    wire.ERROR_REASON_DUPLICATE_REQUEST: InvalidRequest,
    wire.ERROR_REASON_INTERNAL: ServerError,
    wire.ERROR_REASON_DEADLINE_UNREACHABLE: Busy,
    wire.ERROR_REASON_WOULD_DELAY_OTHERS: Busy,
    wire.ERROR_REASON_SHED: Busy,
    wire.ERROR_REASON_BELOW_FLOOR: Busy,
    wire.ERROR_REASON_DEMOTED: Unavailable,
    wire.ERROR_REASON_CONFLICT: InvalidRequest,
    wire.ERROR_REASON_UNKNOWN_NAME: NotFound,
    wire.ERROR_REASON_STORE_UNAVAILABLE: Unavailable,
    wire.ERROR_REASON_UNKNOWN_JOB: NotFound,
    wire.ERROR_REASON_UNAUTHENTICATED: Unauthenticated,
    wire.ERROR_REASON_FORBIDDEN: Forbidden,
    wire.ERROR_REASON_KEY_LIMIT: Busy,
    wire.ERROR_REASON_NO_TOOLS: InvalidRequest,
    wire.ERROR_REASON_QUARANTINED: InvalidRequest,
}
_BY_CODE: dict[grpc.StatusCode, type[OctetError]] = {
    # Who cancels gives a reason. gRPC gives none to what nobody has looked at: the server stops, or too many wait.
    grpc.StatusCode.CANCELLED: Unavailable,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: InvalidRequest,
    grpc.StatusCode.PERMISSION_DENIED: Forbidden,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Busy,
    grpc.StatusCode.FAILED_PRECONDITION: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.UNIMPLEMENTED: InvalidRequest,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
}


def error_class(code: grpc.StatusCode, reason: int) -> type[OctetError]:
    """A reason this client has not heard of, from a newer server, is no reason; a code nobody is to blame for, its."""
    return _BY_REASON.get(reason) or _BY_CODE.get(code, ServerError)
