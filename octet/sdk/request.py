"""From options to a message. Ranges are the router's to check; what no message can carry is refused here."""

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from octet.sdk.faults import invalid
from octet.sdk.retry import Left
from octet.sdk.structure import structure_of
from octet.sdk.tools import choice_to_wire, message_to_wire, tool_to_wire
from octet.v1 import inference_pb2 as wire

_RENAMED = {
    "force": "force_specialists",
    "exclude": "exclude_specialists",
    "session": "session_id",
    "user": "user_id",
    "logprobs": "num_logprobs",
}
_REQUEST = frozenset(wire.InferRequest.DESCRIPTOR.fields_by_name) - {"sampling", "timeout_ms", "first_token_timeout_ms"}
_SAMPLING = frozenset(wire.Sampling.DESCRIPTOR.fields_by_name)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_LONGEST_S = 10**9
"""Some thirty years: beyond it a clock that counts nanoseconds runs over."""
_SHOWN = 60
_KINDS = {
    FieldDescriptor.CPPTYPE_INT32: "a whole number of 32 bits",
    FieldDescriptor.CPPTYPE_INT64: "a whole number of 64 bits",
    FieldDescriptor.CPPTYPE_UINT32: "a whole number of 32 bits, not negative",
    FieldDescriptor.CPPTYPE_UINT64: "a whole number of 64 bits, not negative",
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
    FieldDescriptor.CPPTYPE_FLOAT: "a number",
    FieldDescriptor.CPPTYPE_BOOL: "true or false",
    FieldDescriptor.CPPTYPE_STRING: "text",
}
_MESSAGES = {
    "messages": "a list of messages, each with a role and a content",
    "logit_bias": "a mapping from tokens to numbers",
    "metadata": "a mapping from names to text",
    "structure": "a mapping that is a JSON Schema, or Json, Regex or Choice",
    "tools": "a list of tools, each with a name, and a description, parameters and strict where they are meant",
    "tool_choice": "a mapping of mode, name and one_at_most, or one of auto, none and required",
}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that can be sent, and be sent again."""

    message: wire.InferRequest
    timeout: float | None
    first_timeout: float | None
    metadata: tuple[tuple[str, str], ...]

    def renew(self) -> Callable[[Left], Message]:
        """What an attempt sends, given the seconds left. Its id is new unless it is the caller's."""
        kept = self.message.request_id

        def attempt(left: Left) -> wire.InferRequest:
            self.message.request_id = kept or os.urandom(16).hex()
            self.allow(left)
            return self.message

        return attempt

    def allow(self, left: Left) -> None:
        """Say how much time there is."""
        if left.total is not None:
            self.message.timeout_ms = _milliseconds(left.total)
        if left.first is not None:
            self.message.first_token_timeout_ms = _milliseconds(left.first)


def prepare(prompt: str | None, options: Mapping[str, Any]) -> Prepared:
    """Raises InvalidRequest, and TypeError for an option that does not exist."""
    given = {name: value for name, value in {"prompt": prompt, **options}.items() if value is not None}
    timeout, trace = check_timeout(given.pop("timeout", None)), given.pop("trace", None)
    first_timeout = check_timeout(given.pop("first_token_timeout", None), "first_token_timeout")
    message = wire.InferRequest()
    for name, value in given.items():
        field = _RENAMED.get(name, name)
        if name in _RENAMED.values() or field not in _REQUEST | _SAMPLING:
            raise TypeError(f"there is no option {name!r}")
        _set(message.sampling if field in _SAMPLING else message, field, name, value)
    return Prepared(message, timeout, first_timeout, _metadata(trace))


def check_timeout(seconds: float | None, name: str = "timeout") -> float | None:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is not None and not (is_number and 0 < seconds <= _LONGEST_S):
        raise invalid(name, f"a number of seconds in (0, {_LONGEST_S:,}]", _show(seconds))
    return seconds


def _milliseconds(seconds: float) -> int:
    return max(1, math.ceil(seconds * 1000))


def lookup(kind: type[Message], request_id: str, **more: str) -> Message:
    """A message that is little but the id of a request."""
    message = kind()
    for field, value in {"request_id": request_id, **more}.items():
        _set(message, field, field, value)
    return message


def _metadata(trace: str | None) -> tuple[tuple[str, str], ...]:
    if trace is None:
        return ()
    if not isinstance(trace, str) or _TRACEPARENT.fullmatch(trace) is None:
        raise invalid("trace", "a W3C traceparent, 00-<32 hex digits>-<16 hex digits>-<2 hex digits>", _show(trace))
    return (("traceparent", trace),)


def _set(message: Any, field: str, name: str, value: Any) -> None:
    try:
        if field == "messages":
            message.messages.extend(map(message_to_wire, value))
        elif field == "tools":
            message.tools.extend(map(tool_to_wire, value))
        elif field == "tool_choice":
            message.tool_choice.CopyFrom(choice_to_wire(value))
        elif field == "logit_bias":
            message.logit_bias.extend(wire.LogitBias(token=token, bias=bias) for token, bias in value.items())
        elif field == "metadata":
            message.metadata.update(value)
        elif field == "structure":
            message.structure.CopyFrom(structure_of(value))
        elif message.DESCRIPTOR.fields_by_name[field].is_repeated:
            getattr(message, field).extend([value] if isinstance(value, str) else value)
        else:
            setattr(message, field, value)
    except UnicodeEncodeError:
        raise invalid(name, "valid UTF-8", "text with a lone surrogate") from None
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise invalid(name, _wanted(message.DESCRIPTOR.fields_by_name[field]), f"{_show(value)} ({error})") from None


def _wanted(field: Any) -> str:
    """The kind of value that an option takes."""
    if field.message_type is not None:
        return _MESSAGES[field.name]
    one = "bytes" if field.type == field.TYPE_BYTES else _KINDS[field.cpp_type]
    return f"{one}, or several" if field.is_repeated else one


def _show(value: object) -> str:
    shown = repr(value[:_SHOWN] if isinstance(value, str | bytes) else value)
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."
