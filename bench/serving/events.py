"""Server-sent events of OpenAI's dialect, as they come."""

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

_END = b"[DONE]"
_EXPIRED = ("deadline", "timeout_error")


class Event(NamedTuple):
    text: bool
    """Whether it brought any."""
    usage: dict[str, Any] | None = None
    error: str | None = None
    expired: bool = False
    """The error is that a deadline has passed."""
    finished: bool = False


async def events(body: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    """Until the body's end, so that the connection can be used again."""
    rest = b""
    async for part in body:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and (data := line[5:].strip()) != _END:
                yield event_of(data)


def event_of(data: bytes) -> Event:
    try:
        fields = json.loads(data)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        return Event(False, error=f"an event that is no JSON object: {data[:60]!r}")
    if fields.get("error"):
        return Event(False, error=message_of(fields), expired=_kind_of(fields["error"]) in _EXPIRED)
    usage = fields.get("usage")
    choice = (fields.get("choices") or [{}])[0]
    delta = choice.get("delta") or {}
    said = delta.get("content") or delta.get("reasoning_content") or choice.get("text")
    return Event(bool(said), usage if isinstance(usage, dict) else None, finished=bool(choice.get("finish_reason")))


def message_of(fields: Any) -> str:
    """Of an error in whatever envelope: OpenAI's, FastAPI's, or a bare text."""
    error = fields.get("error", fields) if isinstance(fields, dict) else fields
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return " ".join(str(error).split())[:200]


def _kind_of(error: Any) -> str:
    return str(error.get("code") or error.get("type")) if isinstance(error, dict) else ""
