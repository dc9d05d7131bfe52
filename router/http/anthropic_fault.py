"""Anthropic's envelope around the reason why a call was not served."""

from collections.abc import Mapping
from typing import Any

from router.http.fault import Fault

PATH = "/v1/messages"
_INVALID = "invalid_request_error"
_BROKEN = "api_error"
_KINDS: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    499: _BROKEN,
    504: "timeout_error",
}
_OURS = 500
"""From here on it is not the caller's mistake."""


def is_anthropic(path: str) -> bool:
    """Whoever calls this path speaks Anthropic's dialect, also where there is nothing at it."""
    return path == PATH or path.startswith(f"{PATH}/")


def anthropic_envelope(fault: Fault, request_id: str) -> dict[str, Any]:
    """What had been said stands in it as content."""
    error: dict[str, Any] = {"type": _kind(fault.status), "message": str(fault)}
    error["details"] = {"error_code": fault.code, "param": fault.param}
    if fault.partial:
        error["partial"] = [{"type": "text", "text": said["text"]} for said in fault.partial]
    return {"type": "error", "error": error, "request_id": request_id}


def _kind(status: int) -> str:
    return _KINDS.get(status) or (_BROKEN if status >= _OURS else _INVALID)
