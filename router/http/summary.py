"""What callers who ask for it are told of a receipt beside their answer."""

from typing import Any

from octet.sdk.receipt import Receipt
from octet.v1 import inference_pb2 as wire


def summary(receipt: wire.Receipt) -> dict[str, Any]:
    told = Receipt.from_wire(receipt)
    return {
        "request_id": told.request_id,
        "specialist": told.specialist,
        "replica": told.replica,
        "decided_by": told.decision.source,
        "why": told.decision.why,
        "confidence": told.decision.confidence,
        "attempts": len(told.attempts),
        "seconds": told.timings.total,
    }
