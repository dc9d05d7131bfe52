"""What receipts are found by."""

from google.protobuf.message import DecodeError

from octet.store import Labels
from octet.telemetry.outcome import outcome_of, specialist_of
from octet.v1 import inference_pb2 as wire

_UNREADABLE = Labels(outcome="unreadable")


def labels_of(receipt: wire.Receipt) -> Labels:
    return Labels(receipt.tenant, specialist_of(receipt), outcome_of(receipt))


def labels_in(raw: bytes) -> Labels:
    """Of one that was kept without; on any thread."""
    try:
        return labels_of(wire.Receipt.FromString(raw))
    except DecodeError:
        return _UNREADABLE
