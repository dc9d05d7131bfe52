"""Server-sent events, as bytes."""

import json
from collections.abc import Mapping
from typing import Any

ALIVE = b": still here\n\n"
"""Nothing, for whoever would take silence for the end."""


def data_event(content: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def named_event(name: str, content: Mapping[str, Any], number: int | None = None) -> bytes:
    head = f"event: {name}\n" if number is None else f"id: {number}\nevent: {name}\n"
    return head.encode() + data_event(content)


def written_event(name: str, content: bytes) -> bytes:
    """Of what is JSON already, in one line."""
    return f"event: {name}\ndata: ".encode() + content + b"\n\n"
