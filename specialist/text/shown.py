"""A message as chat templates expect it."""

import re
from hashlib import sha256
from typing import Any

from specialist.text.message import Message
from specialist.tools.dialect import MISTRAL, Dialect

_SHORT = re.compile(r"[a-zA-Z0-9]{9}")
"""The only ids that Mistral's templates take."""


def shown_message(message: Message, dialect: Dialect | None) -> dict[str, Any]:
    """Keys of calls only where there are some: templates ask whether they are there."""
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        calls = (call._replace(call_id=_shown_id(call.call_id, dialect)) for call in message.tool_calls)
        shown["tool_calls"] = [call.shown() for call in calls]
    if message.tool_call_id:
        shown["tool_call_id"] = _shown_id(message.tool_call_id, dialect)
    return shown


def _shown_id(call_id: str, dialect: Dialect | None) -> str:
    if dialect != MISTRAL or _SHORT.fullmatch(call_id):
        return call_id
    return sha256(call_id.encode()).hexdigest()[:9]
