"""A fault as a response, in the dialect of the path that was called."""

from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from router.http.anthropic_fault import anthropic_envelope, is_anthropic
from router.http.fault import Fault
from router.http.last_word import LastWord


def response_of(fault: Fault, scope: Scope) -> Response:
    """The scope is one of the app's, which has given it an id."""
    content = anthropic_envelope(fault, scope["request_id"]) if is_anthropic(scope["path"]) else fault.envelope()
    kind = LastWord if fault.body_is_coming else JSONResponse
    return kind(content, fault.status, headers=fault.headers)


def id_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    """The request's id, by the names that clients look for."""
    request_id: bytes = scope["request_id"].encode()
    named = [(b"x-request-id", request_id)]
    return [*named, (b"request-id", request_id)] if is_anthropic(scope["path"]) else named
