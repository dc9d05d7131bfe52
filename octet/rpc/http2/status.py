"""How a call ended, from whatever said so (gRPC's PROTOCOL-HTTP2)."""

from typing import NamedTuple
from urllib.parse import unquote

import grpc
from grpc.aio import AioRpcError, Metadata

from octet.rpc.http2 import errors
from octet.rpc.http2.metadata import metadata_of
from octet.rpc.http2.static_table import Headers

Code = grpc.StatusCode
_CODES = {str(code.value[0]): code for code in Code}
_BY_HTTP = {
    "400": Code.INTERNAL,
    "401": Code.UNAUTHENTICATED,
    "403": Code.PERMISSION_DENIED,
    "404": Code.UNIMPLEMENTED,
    "429": Code.UNAVAILABLE,
    "502": Code.UNAVAILABLE,
    "503": Code.UNAVAILABLE,
    "504": Code.UNAVAILABLE,
}
_BY_RESET = {
    errors.REFUSED_STREAM: Code.UNAVAILABLE,
    errors.CANCEL: Code.CANCELLED,
    errors.ENHANCE_YOUR_CALM: Code.RESOURCE_EXHAUSTED,
    errors.INADEQUATE_SECURITY: Code.PERMISSION_DENIED,
}


class Status(NamedTuple):
    code: grpc.StatusCode
    details: str
    trailing: tuple[tuple[str, str | bytes], ...] = ()

    def error(self, initial: Headers) -> AioRpcError:
        return AioRpcError(self.code, Metadata(*metadata_of(initial)), Metadata(*self.trailing), details=self.details)


OK = Status(Code.OK, "")


def status_of(trailers: Headers) -> Status:
    """What came last: trailers behind messages, or headers that are all there is."""
    said = dict(trailers)
    status = said.get("grpc-status")
    if status is None:
        return _unsaid(said)
    if status == "0":  # what else is said to somebody who has got everything is not looked at
        return OK
    code = _CODES.get(status, Code.UNKNOWN)
    return Status(code, unquote(said.get("grpc-message", ""), errors="replace"), metadata_of(trailers))


def _unsaid(said: dict[str, str]) -> Status:
    """By somebody who may not speak gRPC at all."""
    http = said.get(":status")
    if http is None or http == "200":
        return Status(Code.UNKNOWN, "it ended without a status")
    return Status(_BY_HTTP.get(http, Code.UNKNOWN), f"it was answered with HTTP status {http[:16]}")


def status_of_reset(code: int) -> Status:
    return Status(_BY_RESET.get(code, Code.INTERNAL), f"the other side has ended it: {errors.name_of(code)}")


def unavailable(why: str) -> Status:
    return Status(Code.UNAVAILABLE, why)


PAST_DEADLINE = Status(Code.DEADLINE_EXCEEDED, "Deadline Exceeded")
