"""Server-sent events, as bytes."""

import json
from collections.abc import Callable, Mapping
from typing import Any

ALIVE = b": still here\n\n"
"""Nothing, for whoever would take silence for the end."""
_written = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_HOLE = "\x00"
"""What no name and no number holds: where the text of a form is to stand."""


def data_event(content: Mapping[str, Any]) -> bytes:
    return b"data: " + _written(content).encode() + b"\n\n"


def named_event(name: str, content: Mapping[str, Any], number: int | None = None) -> bytes:
    head = f"event: {name}\n" if number is None else f"id: {number}\nevent: {name}\n"
    return head.encode() + data_event(content)


def written_event(name: str, content: bytes) -> bytes:
    """Of what is JSON already, in one line."""
    return f"event: {name}\ndata: ".encode() + content + b"\n\n"


class Form:
    """Events that are alike but for one text: what is alike is written once."""

    __slots__ = ("_before", "_behind")

    def __init__(self, event_with: Callable[[str], bytes]) -> None:
        """`event_with` writes the event of a text. Raises ValueError where the text does not stand in it once."""
        self._before, self._behind = event_with(_HOLE).split(_written(_HOLE).encode())

    def event(self, text: str) -> bytes:
        return self._before + _written(text).encode() + self._behind
