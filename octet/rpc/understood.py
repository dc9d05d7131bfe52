"""Messages of calls that are not our own, as health and reflection: gRPC would call malformed ones an error of ours."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2 as wire

Deserialise = Callable[[bytes], Any] | None
"""None: bytes as they are."""


def understood(raw: bytes, deserialise: Deserialise) -> Any:
    """Raises Refusal."""
    if deserialise is None:
        return raw
    try:
        return deserialise(raw)
    except DecodeError:
        raise Refusal(
            grpc.StatusCode.INVALID_ARGUMENT,
            wire.ERROR_REASON_MALFORMED,
            "request: not a message that this call takes",
            field="request",
            limit="a serialised message of the call's own kind",
        ) from None


async def all_understood(requests: AsyncIterator[bytes], deserialise: Deserialise) -> AsyncIterator[Any]:
    """Raises Refusal."""
    async for raw in requests:
        yield understood(raw, deserialise)
