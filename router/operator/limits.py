"""The most of every field an operator sends: what it means is for whoever makes the change."""

from octet.rpc.checks import Checks
from octet.rpc.range import Range

REQUEST_BYTES = 64 << 10
MOST_AUDIT = 2_000
"""A hundredth of a second of the event loop."""
USUAL_AUDIT = 100
MOST_RECEIPTS = 500
USUAL_RECEIPTS = 50
_TEN_YEARS = 10 * 365 * 86_400
_NAME = 256
_LAST_MS = 2**53
_RANGES = {
    "value": Range(-1_000_000, 1_000_000),
    "last_seconds": Range(0, _TEN_YEARS),
    "most": Range(0, MOST_AUDIT),
}
_SIZES = {
    "specialist": _NAME,
    "hold": _NAME,
    "name": _NAME,
    "replica": _NAME,
    "subject": _NAME,
    "outcome": _NAME,
    "tenant": _NAME,
    "request_id": _NAME,
    "path": 4096,
    "change.who": 256,
    "change.why": 2048,
}
CHECKS = Checks(_RANGES, _SIZES, {})
RECEIPT_CHECKS = Checks({"most": Range(0, MOST_RECEIPTS), "before_unix_ms": Range(0, _LAST_MS)}, _SIZES, {})
