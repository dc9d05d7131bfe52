"""What became of a request, in one word."""

from typing import Literal

from octet.v1 import inference_pb2 as wire

Outcome = Literal["answered", "refused", "failed", "cancelled"]
CAPACITY = frozenset(
    {
        wire.ERROR_REASON_QUEUE_FULL,
        wire.ERROR_REASON_DEADLINE_UNREACHABLE,
        wire.ERROR_REASON_WOULD_DELAY_OTHERS,
        wire.ERROR_REASON_SHED,
        wire.ERROR_REASON_BELOW_FLOOR,
    }
)
"""Refused for want of it."""
_FAILED = frozenset(
    {
        wire.ERROR_REASON_ENGINE_FAILED,
        wire.ERROR_REASON_REPLICA_FAILED,
        wire.ERROR_REASON_REPLICA_LOST,
        wire.ERROR_REASON_NO_REPLICA,
        wire.ERROR_REASON_NOT_READY,
        wire.ERROR_REASON_DRAINING,
        wire.ERROR_REASON_DEADLINE,
        wire.ERROR_REASON_INTERNAL,
    }
)
"""It should have been answered."""
_GONE = frozenset({wire.ERROR_REASON_CANCELLED, wire.ERROR_REASON_CALLER_STALLED})


def outcome_of(receipt: wire.Receipt) -> Outcome:
    if not receipt.HasField("error"):
        return "answered"
    reason = receipt.error.reason
    if reason in _GONE:
        return "cancelled"
    return "failed" if reason in _FAILED else "refused"


def lacked_room(receipt: wire.Receipt) -> bool:
    return receipt.HasField("error") and receipt.error.reason in CAPACITY


def asked_first(receipt: wire.Receipt) -> str:
    """The specialist that was to answer before anybody else; empty where nobody was."""
    if receipt.between.spilled:
        return str(receipt.decision.primary)
    if receipt.attempts:
        return str(receipt.attempts[0].specialist)
    return receipt.specialist or receipt.decision.primary
