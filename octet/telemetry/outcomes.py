"""Outcomes of requests: answered, refused, failed or cancelled; and which specialist is responsible."""

from typing import Literal, get_args

from octet.rpc.messages import enum_labels
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire

RequestOutcome = Literal["answered", "refused", "failed", "cancelled"]
OUTCOMES: tuple[RequestOutcome, ...] = get_args(RequestOutcome)


def error_reasons(names: str) -> frozenset[int]:
    return frozenset(error_pb2.ErrorReason.Value(f"ERROR_REASON_{name}") for name in names.split())


# The queue is full, or a deadline would be missed.
CAPACITY_REASONS = error_reasons("QUEUE_FULL DEADLINE_UNREACHABLE WOULD_DELAY_OTHERS SHED")
_CALLER_REASONS = error_reasons("CANCELLED CALLER_STALLED")
# A missed deadline is a failure: a request that cannot be answered in time should be refused immediately.
_FAILURE_REASONS = error_reasons(
    "UNSPECIFIED DEADLINE ENGINE_FAILED REPLICA_FAILED REPLICA_LOST NO_REPLICA INTERNAL STORE_UNAVAILABLE"
)


def request_outcome(receipt: wire.Receipt) -> RequestOutcome:
    """Return how a request ended. `answered`: in full. `cancelled`: the caller cancelled, left, or stopped reading.
    `failed`: a replica or the router failed, the deadline passed, or the answer broke off. `refused`: before any
    output, for lack of capacity, by a rule, or because no specialist could answer."""
    if not receipt.HasField("error"):
        return "answered"
    return error_outcome(receipt.error, begun=receipt.timings.HasField("first_chunk"))


def error_outcome(error: wire.Error, *, begun: bool = False) -> RequestOutcome:
    """Return the outcome of an error; `begun` means that part of the answer was sent."""
    if error.reason in _CALLER_REASONS:
        return "cancelled"
    return "failed" if begun or error.reason in _FAILURE_REASONS else "refused"


def responsible_specialist(receipt: wire.Receipt) -> str:
    """Return the specialist that answered, else the first one that was tried or planned; empty if there is none."""
    return receipt.specialist or first_asked(receipt)


def first_asked(receipt: wire.Receipt) -> str:
    """Return the specialist that was tried first; if none was tried, the one that was planned."""
    lead = str(receipt.between.lead or receipt.decision.primary)
    if receipt.between.spilled or not receipt.attempts:  # only the last attempts are stored
        return lead
    return str(receipt.attempts[0].specialist)


_REASON_NAMES = dict(enum_labels(error_pb2.ErrorReason.DESCRIPTOR))
REASON_NAMES = frozenset((*_REASON_NAMES.values(), "other"))


def reason_name(reason: int) -> str:
    """Return the name of the reason in lower case, or `other` if it is unknown."""
    return _REASON_NAMES.get(reason, "other")
