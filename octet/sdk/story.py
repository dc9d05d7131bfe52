"""Everything that is known of one request."""

from dataclasses import dataclass
from typing import Any

from octet.sdk.operating import AuditEntry, Comparison
from octet.sdk.receipt import Receipt
from octet.v1 import operator_pb2 as wire


@dataclass(frozen=True, slots=True)
class Story:
    receipt: Receipt
    comparison: Comparison | None
    """What the shadow's answer was like beside this one; None without a shadow, or while nobody knows."""
    judged: str
    """What the verifier made of the answer afterwards: passed, failed, or empty where it was not looked at."""
    changes: tuple[AuditEntry, ...]
    """What had been changed of its specialist, knobs and replicas in the hour before, and during, newest first."""

    @classmethod
    def from_wire(cls, message: wire.Story) -> "Story":
        return cls(
            receipt=Receipt.from_wire(message.receipt),
            comparison=Comparison.from_wire(message.comparison) if message.HasField("comparison") else None,
            judged=message.judged,
            changes=tuple(AuditEntry.from_wire(each) for each in message.changes),
        )

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "receipt": self.receipt.to_dict(),
            "comparison": None if self.comparison is None else self.comparison.to_dict(),
            "judged": self.judged,
            "changes": [each.to_dict() for each in self.changes],
        }
