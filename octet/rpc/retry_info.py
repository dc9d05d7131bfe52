"""When to try again, in the words of gRPC's richer error model: for clients that have never heard of Octet."""

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration

from octet.v1 import error_pb2 as wire

METADATA_KEY = "grpc-status-details-bin"
_TYPE_URL = "type.googleapis.com/google.rpc.RetryInfo"


def status_details(code: grpc.StatusCode, message: str, retry_after_ms: int) -> bytes:
    """Code and message must be the call's own: a client compares them."""
    delay = Duration()
    delay.FromMilliseconds(retry_after_ms)
    info = Any(type_url=_TYPE_URL, value=wire.RetryInfo(retry_delay=delay).SerializeToString())
    raw: bytes = wire.StatusDetails(code=code.value[0], message=message, details=[info]).SerializeToString()
    return raw
