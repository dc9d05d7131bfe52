"""What became of a request, in one word."""

from typing import Literal, get_args

from octet.v1 import inference_pb2 as wire

Outcome = Literal["answered", "refused", "failed", "cancelled"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
_CANCELLED = frozenset({wire.ERROR_REASON_CANCELLED, wire.ERROR_REASON_CALLER_STALLED})
_FAILED = frozenset(
    {
        wire.ERROR_REASON_DEADLINE,
        wire.ERROR_REASON_ENGINE_FAILED,
        wire.ERROR_REASON_REPLICA_FAILED,
        wire.ERROR_REASON_NO_REPLICA,
        wire.ERROR_REASON_REPLICA_LOST,
        wire.ERROR_REASON_INTERNAL,
        wire.ERROR_REASON_STORE_UNAVAILABLE,
        wire.ERROR_REASON_UNSPECIFIED,
    }
)
"""It should have been answered. Whatever else has gone wrong was refused: nothing was promised."""


def outcome_of(receipt: wire.Receipt) -> Outcome:
    if not receipt.HasField("error"):
        return "answered"
    if receipt.error.reason in _CANCELLED:
        return "cancelled"
    return "failed" if receipt.error.reason in _FAILED else "refused"


def reason_name(reason: int) -> str:
    """Of an ErrorReason, in small letters; one that has no name here is `other`."""
    return _NAMES.get(reason, "other")


_NAMES: dict[int, str] = {
    number: name.removeprefix("ERROR_REASON_").lower() for name, number in wire.ErrorReason.items()
}
REASONS = frozenset((*_NAMES.values(), "other"))
