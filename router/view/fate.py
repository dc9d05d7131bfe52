"""Whether a request lacked room."""

from octet.v1 import inference_pb2 as wire

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


def lacked_room(receipt: wire.Receipt) -> bool:
    return receipt.HasField("error") and receipt.error.reason in CAPACITY
