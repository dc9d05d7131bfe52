"""Server-sent events, as bytes."""

import json
from collections.abc import Mapping
from typing import Any


def data_event(content: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def named_event(name: str, content: Mapping[str, Any]) -> bytes:
    return f"event: {name}\n".encode() + data_event(content)
