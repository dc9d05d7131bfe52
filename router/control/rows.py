"""Rows of the audit."""

from octet.store import AuditRow
from octet.v1 import operator_pb2 as wire


def row(now: float, who: str, why: str, what: str, subject: str, before: str, after: str) -> AuditRow:
    """`now` in unix seconds. The store gives it its number."""
    return AuditRow(0, round(now * 1000), who, why, what, subject, before, after)


def entry_of(each: AuditRow) -> wire.AuditEntry:
    return wire.AuditEntry(
        number=each.number,
        at_unix_ms=each.at_ms,
        who=each.who,
        why=each.why,
        what=each.what,
        subject=each.subject,
        before=each.before,
        after=each.after,
    )
