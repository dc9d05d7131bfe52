"""Whether a request lacked room, and whether it lacked anybody to answer it."""

from octet.telemetry.outcome import NO_ROOM
from octet.v1 import inference_pb2 as wire

CAPACITY = NO_ROOM | {wire.ERROR_REASON_BELOW_FLOOR}
"""Refused for want of it."""


UNSERVED = frozenset({wire.ERROR_REASON_DEMOTED, wire.ERROR_REASON_DRAINING, wire.ERROR_REASON_NOT_READY})
"""Refused though nothing was wrong with the request, and there was room: whoever should answer does not serve now."""


def lacked_anybody(receipt: wire.Receipt) -> bool:
    return receipt.HasField("error") and receipt.error.reason in UNSERVED


def lacked_room(receipt: wire.Receipt) -> bool:
    return receipt.HasField("error") and receipt.error.reason in CAPACITY
