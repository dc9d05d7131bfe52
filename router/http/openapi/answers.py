"""What an operation may answer."""

from collections.abc import Iterable, Mapping
from typing import Any

from router.http.openapi.shapes import COUNT, TEXT, Shape, maybe, named, record, several, word

Responses = dict[str, Any]
_EVENTS: Mapping[str, Any] = {}
"""A schema could be read as that of the whole stream or of each event: this version of OpenAPI does not say."""
_WHEN: Mapping[int, str] = {
    400: "a field is wrong or cannot be done, or the body is no JSON object",
    401: "no key, or one that nobody here knows",
    403: "the key may not do this",
    404: "no such model, adapter, receipt, job, route, specialist, knob or replica",
    405: "not by this method; `allow` lists those that are",
    408: "the body did not come in time",
    409: "it is not as the caller took it to be",
    413: "larger than it may be",
    415: "the body is not called application/json, or it is compressed",
    422: "nobody here should answer this, or things are not so that it could be done",
    429: "no room, or the key has had all that it may have; retry-after where there was something to measure it by",
    499: "somebody cancelled it",
    500: "the engine or the router failed",
    503: "nobody can answer now",
    504: "the deadline passed; what had been said by then is in it",
}
ALWAYS = (401, 403, 405, 429, 500, 503)
"""Of whatever asks for a key."""
BODY = (400, 408, 413, 415)
"""Of whatever reads one."""
ANSWER = (404, 422, 499, 504)
"""Of whatever asks a specialist."""
_REQUEST_ID = {"x-request-id": {"schema": TEXT, "description": "the id of the receipt"}}
_SLO = {
    "octet-slo": {"schema": TEXT, "description": "how well the specialist does of late: structured fields (RFC 9651)"}
}
_RETRY = {
    "retry-after": {"schema": COUNT, "description": "seconds, rounded up"},
    "retry-after-ms": {"schema": COUNT, "description": "the same, to the millisecond"},
}
KINDS = (
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "rate_limit_error",
    "server_error",
    "timeout_error",
)
SCHEMAS: Mapping[str, Shape] = {
    "Error": record(
        {
            "error": record(
                {"message": TEXT, "type": word(*KINDS), "param": maybe(TEXT), "code": maybe(TEXT)},
                {"limit": TEXT, "partial": several(record({"index": COUNT, "text": TEXT}, more=True))},
            )
        },
        more=True,
    ),
}


def body(schema: str, example: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": named(schema), "example": example}}}


def whole(shape: Shape, description: str, status: int = 200) -> Responses:
    return {str(status): _response(description, {"application/json": {"schema": shape}})}


def streamed(shape: Shape, description: str) -> Responses:
    """Whole, or as server-sent events where the caller asks for them."""
    content = {"application/json": {"schema": shape}, "text/event-stream": _EVENTS}
    found = _response(description, content)
    return {"200": {**found, "headers": {**found["headers"], **_SLO}}}


def scraped(description: str) -> Responses:
    """In the format that `accept` asks for."""
    return {"200": _response(description, {"text/plain": {"schema": TEXT}, "application/openmetrics-text": {}})}


def events(description: str) -> Responses:
    return {"200": _response(description, {"text/event-stream": _EVENTS})}


def nothing(description: str) -> Responses:
    return {"204": {"description": description, "headers": dict(_REQUEST_ID)}}


def refusals(statuses: Iterable[int], envelope: str = "Error") -> Responses:
    return {str(status): _refusal(status, envelope) for status in sorted(set(statuses))}


def _refusal(status: int, envelope: str) -> Mapping[str, Any]:
    found = _response(_WHEN[status], {"application/json": {"schema": named(envelope)}})
    return {**found, "headers": {**found["headers"], **_RETRY}} if status in (429, 503) else found


def _response(description: str, content: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": description, "headers": dict(_REQUEST_ID), "content": content}
