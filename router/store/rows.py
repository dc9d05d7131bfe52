"""The store's rows and errors, and the checks of row values. They are the same for every database."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from octet.limits import shorten
from octet.rpc.refusal import invalid_field

DocumentBody = Mapping[str, Any]  # a JSON object
BucketKey = tuple[str, str, int]  # series, key, start
BucketCounts = tuple[int, int]  # good, bad
MAX_KEY_BYTES = 256
MAX_TEXT_BYTES = 64 << 10
MAX_RAW_BYTES = 1 << 20
MAX_SLICE_BYTES = 64 << 10
MAX_TIME = 1 << 53
# characters that PostgreSQL or UTF-8 cannot store, and their escapes
_ESCAPES = {0: "\\x00", **{code: f"\\u{code:04x}" for code in range(0xD800, 0xE000)}}


class Document(NamedTuple):
    """The state of one object, such as a breaker, a knob or the lanes of a specialist."""

    kind: str
    key: str
    version: int  # grows with every change, including a deletion; not necessarily by 1
    body: DocumentBody | None  # None if the document was deleted
    changed_ms: int
    changed_by: str


class StoreConflict(Exception):
    """The document was changed in the meantime. The rejected change had no effect."""

    def __init__(self, kind: str, key: str, current: Document | None) -> None:
        version = current.version if current else 0
        super().__init__(f"{kind} {key} was changed in the meantime; its version is {version}")
        self.kind = kind
        self.key = key
        self.current = current  # None if there is no such document


class StoreUnavailable(Exception):
    """The store cannot be used now, for example because the database did not answer in time."""

    def __init__(self, why: str, *, certain: bool = True) -> None:
        super().__init__(why if certain else f"{why}; it is unknown whether the change was committed")
        self.certain = certain
        """True if the change was certainly not committed. If False, it may have been: `on_change` then reports it."""


class DocumentEdit(NamedTuple):
    kind: str
    key: str
    expected_version: int  # the version that the edit replaces; 0 if there must be no document or a deleted one
    body: DocumentBody | None  # None deletes the document


class AuditRow(NamedTuple):
    number: int  # consecutive; assigned by the store
    at_ms: int
    who: str
    why: str
    what: str
    subject: str
    before: str
    after: str


class CountBucket(NamedTuple):
    series: str
    key: str
    start: int
    good: int
    bad: int


def receipt_key(request_id: str, tenant: str) -> str:
    return f"{tenant}:{request_id}" if tenant else request_id


class ReceiptLabels(NamedTuple):
    tenant: str = ""
    specialist: str = ""
    outcome: str = ""  # empty if the receipt is not labelled yet


class SliceRow(NamedTuple):
    writer: str  # unique to every start of a process
    series: str
    key: str
    start_ms: int
    span_ms: int
    until_ms: int  # Unix milliseconds after which the row is deleted
    raw: bytes


class ReceiptRow(NamedTuple):
    request_id: str
    at_ms: int
    raw: bytes
    labels: ReceiptLabels = ReceiptLabels()
    judged: str = ""  # a StoredVerdict, if the answer was evaluated


class ReceiptQuery(NamedTuple):
    most: int
    before_ms: int = 0  # 0 for no limit
    labels: ReceiptLabels = ReceiptLabels()

    def matches(self, row: ReceiptRow) -> bool:
        is_before = not self.before_ms or row.at_ms < self.before_ms
        return is_before and all(getattr(row.labels, name) == wanted for name, wanted in self.filters.items())

    @property
    def filters(self) -> Mapping[str, str]:
        return {name: value for name in ("tenant", "specialist", "outcome") if (value := getattr(self.labels, name))}


class VerdictRow(NamedTuple):
    """The verdict on an answer that was evaluated after its receipt was stored."""

    request_id: str
    at_ms: int  # the time of the receipt: a request id may be reused
    judged: str


class StoredVerdict(NamedTuple):
    """The verdict on an answer, as it is stored in the column `judged`."""

    outcome: str
    kind: str = ""  # what gave it: verifier, cut or degenerate; verdicts of older versions have none
    why: str = ""

    def pack(self) -> str:
        text = ":".join(self).rstrip(":").replace("\0", " ")
        return text.encode("utf-8", "replace")[:MAX_KEY_BYTES].decode("utf-8", "ignore")

    @classmethod
    def unpack(cls, text: str) -> "StoredVerdict":
        return cls(*text.split(":", 2))


class ComparisonRow(NamedTuple):
    at_ms: int
    request_id: str
    raw: bytes
    text: bytes = b""  # what the classifier reads of the request's text; empty if it is not kept

    @property
    def num_bytes(self) -> int:
        return len(self.raw) + len(self.text)


class StoreChanges(NamedTuple):
    seq: int
    documents: Sequence[Document] = ()  # including deleted documents
    buckets: Sequence[CountBucket] = ()  # sums, which include counts still buffered in this process
    audit: Sequence[AuditRow] = ()  # oldest first
    whole: bool = False  # whether this is the complete content, as at the start and after the database was replaced


class WriteBatch(NamedTuple):
    """Rows that are written together and only once: `number` shows whether the database already has the batch."""

    number: int
    counts: Mapping[BucketKey, BucketCounts]
    receipts: Sequence[ReceiptRow]
    comparisons: Sequence[ComparisonRow]
    verdicts: Sequence[VerdictRow] = ()  # for receipts that are already stored


def check_key(field: str, text: str) -> None:
    if not is_valid_key(text):
        raise invalid_field(field, f"1 to {MAX_KEY_BYTES} bytes of text without NUL or lone surrogates", shorten(text))


def is_valid_key(text: str) -> bool:
    try:
        return "\0" not in text and 1 <= len(text.encode()) <= MAX_KEY_BYTES
    except UnicodeEncodeError:
        return False


def clean_text(field: str, text: str) -> str:
    clean = text.translate(_ESCAPES)
    if len(clean.encode()) > MAX_TEXT_BYTES:
        raise invalid_field(field, f"at most {MAX_TEXT_BYTES} bytes", f"{len(clean.encode())} bytes")
    return clean


def body_to_json(body: DocumentBody) -> str:
    """Return the body as JSON in ASCII, so that every string is read back unchanged."""
    if not isinstance(body, Mapping):
        raise invalid_field("body", "a JSON object", type(body).__name__)
    try:
        text = json.dumps(dict(body), allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid_field("body", "a JSON object", f"an error: {error}") from error
    if len(text) > MAX_TEXT_BYTES:
        raise invalid_field("body", f"at most {MAX_TEXT_BYTES} bytes", f"{len(text)} bytes")
    return text


def check_edit(edit: DocumentEdit) -> DocumentEdit:
    """Check the edit. Return it with the body that a later read will return. Raises Refusal for an invalid edit."""
    check_key("kind", edit.kind)
    check_key("key", edit.key)
    if not 0 <= edit.expected_version < MAX_TIME:
        raise invalid_field("expected_version", "0 or the version of a document", str(edit.expected_version))
    return edit if edit.body is None else edit._replace(body=json.loads(body_to_json(edit.body)))


def check_audit_row(row: AuditRow) -> AuditRow:
    check_key("audit.subject", row.subject)
    if not 0 <= row.at_ms < MAX_TIME:
        raise invalid_field("audit.at_ms", "a time in Unix milliseconds", str(row.at_ms))
    fields = ("who", "why", "what", "before", "after")
    texts = {field: clean_text(f"audit.{field}", getattr(row, field)) for field in fields}
    return AuditRow(number=0, at_ms=row.at_ms, subject=row.subject, **texts)


def check_slice(row: SliceRow) -> None:
    for field in ("writer", "series", "key"):
        check_key(f"slice.{field}", getattr(row, field))
    for field in ("start_ms", "span_ms", "until_ms"):
        if not 0 <= getattr(row, field) < MAX_TIME:
            raise invalid_field(f"slice.{field}", "a number of milliseconds", str(getattr(row, field)))
    if len(row.raw) > MAX_SLICE_BYTES:
        raise invalid_field("slice.raw", f"at most {MAX_SLICE_BYTES} bytes", f"{len(row.raw)} bytes")
