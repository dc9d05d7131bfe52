"""One turn of a conversation."""

from typing import NamedTuple


class Message(NamedTuple):
    role: str
    content: str
