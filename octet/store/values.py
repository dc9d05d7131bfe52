"""What may be kept: refused here, alike for every database."""

import json
from collections.abc import Mapping
from typing import Any

from octet.rpc.refusal import invalid, shorten
from octet.store.rows import AuditRow, Body, Bucket, ComparisonRow, Edit, ReceiptRow, SliceRow

MAX_KEY = 256
MAX_TEXT = 64 << 10
MAX_RAW = 1 << 20
MAX_SLICE = 64 << 10
"""Bytes, all four."""
_MAX_COUNT = 1 << 40
_MAX_TIME = 1 << 53
_NO_TEXT = {0: "\\x00", **{code: f"\\u{code:04x}" for code in range(0xD800, 0xE000)}}
"""What PostgreSQL or UTF-8 cannot hold, and how it is written instead."""


def check_key(field: str, text: str) -> None:
    if not is_key(text):
        raise invalid(field, f"1 to {MAX_KEY} bytes of text without NUL and lone surrogates", shorten(text))


def is_key(text: str) -> bool:
    if "\0" in text:
        return False
    try:
        return 1 <= len(text.encode()) <= MAX_KEY
    except UnicodeEncodeError:
        return False


def prose(field: str, text: str) -> str:
    """As it can be written down everywhere."""
    clean = text.translate(_NO_TEXT)
    if len(clean.encode()) > MAX_TEXT:
        raise invalid(field, f"at most {MAX_TEXT} bytes", f"{len(clean.encode())} bytes")
    return clean


def body_text(body: Body) -> str:
    """JSON in ASCII: whatever a string holds comes back as it was."""
    if not isinstance(body, Mapping):
        raise invalid("body", "a JSON object", type(body).__name__)
    try:
        text = json.dumps(dict(body), allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid("body", "a JSON object", str(error)) from error
    if len(text) > MAX_TEXT:
        raise invalid("body", f"at most {MAX_TEXT} bytes", f"{len(text)} bytes")
    return text


def body_of(text: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def check_edit(edit: Edit) -> None:
    check_key("kind", edit.kind)
    check_key("key", edit.key)
    if not 0 <= edit.expected_version < _MAX_TIME:
        raise invalid("expected_version", "0 or the version of a document", str(edit.expected_version))


def checked_audit(row: AuditRow) -> AuditRow:
    check_key("audit.subject", row.subject)
    if not 0 <= row.at_ms < _MAX_TIME:
        raise invalid("audit.at_ms", "Unix milliseconds", str(row.at_ms))
    texts = {field: prose(f"audit.{field}", getattr(row, field)) for field in ("who", "why", "what", "before", "after")}
    return AuditRow(number=0, at_ms=row.at_ms, subject=row.subject, **texts)


def is_count(bucket: Bucket) -> bool:
    return (
        is_key(bucket.series)
        and is_key(bucket.key)
        and 0 <= bucket.start < _MAX_TIME
        and 0 <= bucket.good <= _MAX_COUNT
        and 0 <= bucket.bad <= _MAX_COUNT
    )


def is_row(row: ReceiptRow | ComparisonRow) -> bool:
    labelled = not isinstance(row, ReceiptRow) or _is_labelled(row)
    return is_key(row.request_id) and 0 <= row.at_ms < _MAX_TIME and len(row.raw) <= MAX_RAW and labelled


def _is_labelled(row: ReceiptRow) -> bool:
    labels = row.labels
    return all(is_key(text) for text in (labels.tenant, labels.specialist, labels.outcome, row.judged) if text)


def check_slice(row: SliceRow) -> None:
    for field in ("writer", "series", "key"):
        check_key(f"slice.{field}", getattr(row, field))
    for field in ("start_ms", "span_ms", "until_ms"):
        if not 0 <= getattr(row, field) < _MAX_TIME:
            raise invalid(f"slice.{field}", "milliseconds", str(getattr(row, field)))
    if len(row.raw) > MAX_SLICE:
        raise invalid("slice.raw", f"at most {MAX_SLICE} bytes", f"{len(row.raw)} bytes")
