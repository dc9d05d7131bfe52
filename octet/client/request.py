"""One request: its message, its attempts and their retries."""

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from octet.client import errors
from octet.client.options import message_to_wire, structure_to_wire, tool_choice_to_wire, tool_to_wire
from octet.clock import Clock
from octet.limits import shorten
from octet.v1 import inference_pb2 as wire

Metadata: TypeAlias = tuple[tuple[str, str], ...]
_RENAMED = {
    "force": "force_specialists",
    "exclude": "exclude_specialists",
    "session": "session_id",
    "user": "user_id",
    "logprobs": "num_logprobs",
}
_REQUEST = frozenset(wire.InferRequest.DESCRIPTOR.fields_by_name) - {
    *("sampling", "timeout_ms", "first_token_timeout_ms", "wait_ms")
}
_SAMPLING = frozenset(wire.Sampling.DESCRIPTOR.fields_by_name)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_MAX_WAIT_S = 86_400  # a day, as at the router
_MAX_TIMEOUT_S = 10**9  # about thirty years: beyond that, a clock that counts nanoseconds overflows
_TYPES = {
    FieldDescriptor.CPPTYPE_INT32: "a 32-bit integer",
    FieldDescriptor.CPPTYPE_INT64: "a 64-bit integer",
    FieldDescriptor.CPPTYPE_UINT32: "a non-negative 32-bit integer",
    FieldDescriptor.CPPTYPE_UINT64: "a non-negative 64-bit integer",
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
    FieldDescriptor.CPPTYPE_FLOAT: "a number",
    FieldDescriptor.CPPTYPE_BOOL: "true or false",
    FieldDescriptor.CPPTYPE_STRING: "text",
}
_MESSAGE_TYPES = {
    "messages": "a list of messages (each with a role and content)",
    "logit_bias": "a mapping from tokens to numbers",
    "metadata": "a mapping from names to text",
    "structure": "a mapping (a JSON Schema), Json, Regex or Choice",
    "tools": "a list of tools (each with a name and optionally a description, parameters and strict)",
    "tool_choice": "a mapping (with the keys mode, name and one_at_most) or one of auto, none and required",
}
_TO_WIRE: Mapping[str, Callable[[Any], Any]] = {
    "messages": lambda given: [message_to_wire(each) for each in given],
    "tools": lambda given: [tool_to_wire(each) for each in given],
    "tool_choice": tool_choice_to_wire,
    "logit_bias": lambda given: [wire.LogitBias(token=token, bias=bias) for token, bias in given.items()],
    "structure": structure_to_wire,
}


class TimeLeft(NamedTuple):
    """The time left for a call, in seconds; None means no limit."""

    total: float | None
    first: float | None  # until the first token
    wait: float | None = None  # for a place, before the limits begin to count; None if a ticket would not be used


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    message: wire.InferRequest
    timeouts: TimeLeft  # as given in the options
    metadata: Metadata
    request_id: str  # set by the caller; empty for a new id in every attempt

    def message_for(self, left: TimeLeft) -> wire.InferRequest:
        """Return the message of the next attempt, with the time that is left."""
        self.message.request_id = self.request_id or os.urandom(16).hex()
        self.set_timeouts(left)
        return self.message

    def set_timeouts(self, left: TimeLeft) -> None:
        if left.total is not None:
            self.message.timeout_ms = _milliseconds(left.total)
        if left.first is not None:
            self.message.first_token_timeout_ms = _milliseconds(left.first)
        self.message.ClearField("wait_ms")
        if left.wait is not None:
            self.message.wait_ms = math.floor(left.wait * 1000)


def prepare_request(prompt: str | None, options: Mapping[str, Any]) -> PreparedRequest:
    """Build the request. Raises InvalidRequest for a value its field cannot hold, TypeError for an unknown option."""
    given = {name: value for name, value in {"prompt": prompt, **options}.items() if value is not None}
    trace, wait = given.pop("trace", None), check_wait(given.pop("wait", None))
    total, first = (check_timeout(given.pop(name, None), name) for name in ("timeout", "first_token_timeout"))
    timeouts = TimeLeft(total, first, wait)
    message = wire.InferRequest()
    for name, value in given.items():
        field = _RENAMED.get(name, name)
        if name in _RENAMED.values() or field not in _REQUEST | _SAMPLING:
            raise TypeError(f"there is no option {name!r}")
        _set_field(message.sampling if field in _SAMPLING else message, field, name, value)
    return PreparedRequest(message, timeouts, _trace_metadata(trace), message.request_id)


def build_message(kind: type[Message], values: Mapping[str, Any]) -> Any:
    """Build a message without the fields that are None. Raises InvalidRequest for a value its field cannot hold."""
    message = kind()
    for field, value in values.items():
        if value is not None:
            _set_field(message, field, field, value)
    return message


def check_timeout(seconds: float | None, name: str = "timeout") -> float | None:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is not None and not (is_number and 0 < seconds <= _MAX_TIMEOUT_S):
        raise errors.invalid_option(name, f"a number of seconds in (0, {_MAX_TIMEOUT_S:,}]", shorten(seconds))
    return seconds


def check_wait(seconds: float | None) -> float | None:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is not None and not (is_number and 0 <= seconds <= _MAX_WAIT_S):
        raise errors.invalid_option("wait", f"a number of seconds in [0, {_MAX_WAIT_S:,}]", shorten(seconds))
    return seconds


def _milliseconds(seconds: float) -> int:
    return max(1, math.ceil(seconds * 1000))


def _trace_metadata(trace: str | None) -> Metadata:
    if trace is None:
        return ()
    if not isinstance(trace, str) or _TRACEPARENT.fullmatch(trace) is None:
        limit = "a W3C traceparent (00-<32 hex digits>-<16 hex digits>-<2 hex digits>)"
        raise errors.invalid_option("trace", limit, shorten(trace))
    return (("traceparent", trace),)


def _set_field(message: Any, field: str, name: str, value: Any) -> None:
    try:
        convert = _TO_WIRE.get(field)
        given = value if convert is None else convert(value)
        if field == "metadata":
            message.metadata.update(given)
        elif isinstance(given, Message):
            getattr(message, field).CopyFrom(given)
        elif message.DESCRIPTOR.fields_by_name[field].is_repeated:
            getattr(message, field).extend([given] if isinstance(given, str) else given)
        else:
            setattr(message, field, given)
    except UnicodeEncodeError:
        raise errors.invalid_option(name, "valid UTF-8", "text with a lone surrogate") from None
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        limit = _expected_type(message.DESCRIPTOR.fields_by_name[field])
        raise errors.invalid_option(name, limit, f"{shorten(value)} ({error})") from None


def _expected_type(field: Any) -> str:
    if field.message_type is not None:
        return _MESSAGE_TYPES[field.name]
    single = "bytes" if field.type == field.TYPE_BYTES else _TYPES[field.cpp_type]
    return f"{single} or a list of such values" if field.is_repeated else single


FIRST_WAIT_S = 0.1  # upper bound of the random wait before the first retry; it doubles with every further retry
LONGEST_WAIT_S = 5.0
LONGEST_RETRY_AFTER_S = 60.0  # if the server asks for a longer wait, the call fails instead
_MAX_DOUBLINGS = 60  # keeps the power of two within the range of floats
_PERMANENT_REASONS = {"below_floor", "demoted"}  # refusals that a retry would not change soon


class ClientRetryBudget:
    """Keeps retries from overloading a server: a retry costs 1, and an answer earns a fraction back."""

    def __init__(self, *, capacity: float = 10.0, earned: float = 0.1) -> None:
        self._capacity = capacity
        self._earned = earned
        self._lock = Lock()
        self.left = capacity

    def spend(self) -> bool:
        """Charge one retry and return True, or return False if the budget does not cover it."""
        with self._lock:
            if self.left < 1:
                return False
            self.left -= 1
            return True

    def earn(self) -> None:
        with self._lock:
            self.left = min(self._capacity, self.left + self._earned)


def _is_retryable(error: errors.OctetError) -> bool:
    """Whether a retry may succeed. `deadline_unreachable` is retried only if the server sent `retry_after`."""
    if error.reason in _PERMANENT_REASONS or (error.reason == "deadline_unreachable" and error.retry_after is None):
        return False
    return isinstance(error, errors.Busy | errors.Unavailable | errors.ReplicaLost)


@dataclass
class RetrySchedule:
    """Schedules the retries of one call."""

    max_retries: int
    budget: ClientRetryBudget
    clock: Clock
    random: Random
    timeout: float | None  # seconds for the whole call
    first_timeout: float | None = None  # seconds until the first token
    wait: float | None = None  # seconds before these limits begin to count; None if no tickets are used

    def __post_init__(self) -> None:
        self._began = self.clock.now()
        self._num_retries = 0

    def left(self) -> TimeLeft:
        return self._left_after(0.0)

    def _left_after(self, seconds: float) -> TimeLeft:
        passed, wait = self.clock.now() - self._began + seconds, self.wait or 0.0
        counted = max(0.0, passed - wait)
        total, first = (None if limit is None else limit - counted for limit in (self.timeout, self.first_timeout))
        may_return = self._num_retries < max(1, self.max_retries)  # without retries, the caller sends the ticket itself
        return TimeLeft(total, first, max(0.0, wait - passed) if self.wait is not None and may_return else None)

    def wait_after(self, error: errors.OctetError) -> float | None:
        """Return the seconds until the next attempt, which is charged to the budget unless the error has a ticket; None
        to give up."""
        if not _is_retryable(error) or self._num_retries >= self.max_retries:
            return None
        wait = self._wait(error.retry_after)
        is_too_late = any(left is not None and left <= 0 for left in self._left_after(wait)[:2])
        if wait > LONGEST_RETRY_AFTER_S or is_too_late:
            return None
        if not error.ticket and not self.budget.spend():  # a kept place is no further load
            return None
        self._num_retries += 1
        return wait

    def _wait(self, retry_after: float | None) -> float:
        if retry_after is not None:
            return max(0.0, retry_after)
        doubled = FIRST_WAIT_S * 2 ** min(self._num_retries, _MAX_DOUBLINGS)
        return self.random.uniform(0, min(LONGEST_WAIT_S, doubled))


_GRACE_S = 0.5  # extra time for the server to report a timeout itself, with a receipt


@dataclass(slots=True)
class Attempts:
    """The attempts of one call. The class does no I/O, so that blocking and asyncio clients can share it."""

    make_message: Callable[[TimeLeft], Message]
    schedule: RetrySchedule
    convert_error: Callable[..., errors.OctetError]  # takes a grpc.RpcError, `request_id` and `begun`
    is_closed: Callable[[], bool]  # whether the client is closed
    metadata: Metadata = ()
    request_id: str = ""  # id of the last attempt
    ticket: str | None = None  # of the last refusal; None before the first

    def start(self) -> tuple[Message, dict[str, Any]]:
        """Return the message to send and gRPC's options. Raises Cancelled if the client is closed."""
        if self.is_closed():
            raise errors.closed_error(self.request_id)
        left = self.schedule.left()
        message: Any = self.make_message(left)
        self.request_id = getattr(message, "request_id", "")
        if self.ticket is not None and "ticket" in message.DESCRIPTOR.fields_by_name:
            message.ticket = self.ticket
        timeout = None if left.total is None else left.total + _GRACE_S
        return message, {"timeout": timeout, "metadata": self.metadata}

    def fail(self, error: Any, *, begun: bool = False, cancelled: bool = False) -> float:
        """Return the seconds until the next attempt. Raises OctetError if there will be none, for example because part
        of the answer has arrived (`begun`) or the caller has cancelled the request (`cancelled`)."""
        problem = self.convert_error(error, request_id=self.request_id, begun=begun)
        if errors.is_unexplained_cancel(problem) and cancelled:
            raise errors.cancelled_error(self.request_id) from None
        if errors.is_unexplained_cancel(problem) and self.is_closed():
            raise errors.closed_error(self.request_id) from None
        wait = None if begun else self.schedule.wait_after(problem)
        if wait is None:
            raise problem from None
        if isinstance(problem, errors.Busy):  # another failure, such as a lost connection, leaves the place kept
            self.ticket = problem.ticket
        return wait
