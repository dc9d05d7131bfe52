"""What the store keeps, as its users see it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Body = Mapping[str, Any]
"""A JSON object."""


@dataclass(frozen=True, slots=True)
class Document:
    """The state of one thing: a breaker, a knob, the lanes of a specialist."""

    kind: str
    key: str
    version: int
    """Grows with every change, also across a deletion; not by one."""
    body: Body | None
    """None: it was deleted."""
    changed_ms: int
    changed_by: str


@dataclass(frozen=True, slots=True)
class Edit:
    """One document as it shall be."""

    kind: str
    key: str
    expected_version: int
    """Of the document that it replaces; 0: there must be none, or a deleted one."""
    body: Body | None
    """None: deleted."""


@dataclass(frozen=True, slots=True)
class AuditRow:
    number: int
    """Counts up without gaps; the store fills it in."""
    at_ms: int
    who: str
    why: str
    what: str
    subject: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Bucket:
    """So many good and bad since `start`: as a difference where it is counted, as a sum where it is told."""

    series: str
    key: str
    start: int
    """Unix seconds."""
    good: int
    bad: int


@dataclass(frozen=True, slots=True)
class Labels:
    """What receipts are found by."""

    tenant: str = ""
    specialist: str = ""
    outcome: str = ""
    """Empty: nobody has looked yet."""


@dataclass(frozen=True, slots=True)
class SliceRow:
    """All that one process has measured in one slice of time, so far."""

    writer: str
    """The process: another for every start of it."""
    series: str
    key: str
    start_ms: int
    span_ms: int
    until_ms: int
    """Nobody wants it any later. Unix milliseconds."""
    raw: bytes


@dataclass(frozen=True, slots=True)
class ReceiptRow:
    request_id: str
    at_ms: int
    raw: bytes
    labels: Labels = Labels()
    judged: str = ""
    """What was made of the answer afterwards."""


@dataclass(frozen=True, slots=True)
class ReceiptQuery:
    """The newest of those that have every label that is given."""

    most: int
    before_ms: int = 0
    """0: from now."""
    labels: Labels = Labels()

    def wants(self, row: ReceiptRow) -> bool:
        return (not self.before_ms or row.at_ms < self.before_ms) and all(
            wanted in ("", getattr(row.labels, name)) for name, wanted in self.given.items()
        )

    @property
    def given(self) -> Mapping[str, str]:
        """By the column."""
        return {name: value for name in ("tenant", "specialist", "outcome") if (value := getattr(self.labels, name))}


@dataclass(frozen=True, slots=True)
class Verdict:
    """On the answer of one request, after its receipt was kept."""

    request_id: str
    at_ms: int
    """The receipt's: an id may be used again."""
    judged: str


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    at_ms: int
    request_id: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class Changes:
    """What was committed, by whichever process."""

    seq: int
    documents: Sequence[Document] = ()
    """Deleted ones among them."""
    buckets: Sequence[Bucket] = ()
    """Sums, with what was counted here and is not written yet."""
    audit: Sequence[AuditRow] = ()
    """Oldest first."""
    whole: bool = False
    """It is all there is: what is not in it does not exist. At the start, and when the database was exchanged."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one process since its start."""

    held_receipts: int
    held_comparisons: int
    held_counts: int
    dropped_receipts: int
    dropped_comparisons: int
    dropped_counts: int
    dropped_verdicts: int = 0
