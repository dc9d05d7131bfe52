"""What outlives a router: state, windows, audit, comparisons and receipts, in SQLite or PostgreSQL."""

from octet.store.errors import BadStoreUrl, Stale, StoreUnavailable
from octet.store.rows import (
    AuditRow,
    Body,
    Bucket,
    Changes,
    ComparisonRow,
    Document,
    Edit,
    Figures,
    Labels,
    ReceiptQuery,
    ReceiptRow,
    SliceRow,
    Verdict,
)
from octet.store.slices import SliceMark, SliceNews
from octet.store.store import Store, open_store

__all__ = [
    "AuditRow",
    "BadStoreUrl",
    "Body",
    "Bucket",
    "Changes",
    "ComparisonRow",
    "Document",
    "Edit",
    "Figures",
    "Labels",
    "ReceiptQuery",
    "ReceiptRow",
    "SliceMark",
    "SliceNews",
    "SliceRow",
    "Stale",
    "Store",
    "StoreUnavailable",
    "Verdict",
    "open_store",
]
