"""Transactions over documents, the audit log, counts and receipts, and the recovery of a lost database. Every write
transaction first updates the row of `meta`: this locks out other writers and takes the next sequence number. So
transactions become visible in the order of their numbers."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from secrets import token_hex
from typing import NamedTuple, TypeVar

from router.store import rows
from router.store.connection import DatabaseConnection, DatabaseRow, StoreConnectionLost
from router.store.migrations import META_ROW_LOST

T = TypeVar("T")
_log = logging.getLogger("router.store")
_MIN_SUMS_KEPT = 1000
_MAX_AUDIT_CHANGES = 1000  # maximum number of audit rows in one report
_DOCUMENT = ", ".join(rows.Document._fields)
RECEIPT_COLUMNS = "request_id, at_ms, raw, tenant, specialist, outcome, judged"
_AUDIT = ", ".join(rows.AuditRow._fields)
_RESTORED = "restored"
_TAKEN_OVER = "it was replaced by a different database, whose content is now used instead of this router's state"


class StorePosition(NamedTuple):
    """How far a reader has read, and in which database."""

    identity: str
    seq: int
    audits: int  # the number of the last audit row

    @property
    def name(self) -> str:
        return self.identity[:12]

    def resume(self, known: "StorePosition | None") -> tuple[bool, int]:
        """Return whether a reader that stopped at `known` must read everything, and the `seq` after which to read."""
        if known is None or known.identity != self.identity or known.seq > self.seq:
            return True, 0
        return False, known.seq


class StoreSnapshot:
    """The database content known to this process, kept in case the database is lost. Used on the store's thread."""

    def __init__(self, name: str, wall: Callable[[], float]) -> None:
        self.name = name
        self.wall = wall
        self.position: StorePosition | None = None
        self.documents: dict[tuple[str, str], rows.Document] = {}  # including deleted documents
        self.sums: dict[rows.BucketKey, rows.BucketCounts] = {}  # recent counts as they are stored
        self._max_sums = _MIN_SUMS_KEPT

    def continues(self, position: StorePosition) -> bool:
        known = self.position
        return known is None or (position.identity == known.identity and position.seq >= known.seq)

    def reset(self, position: StorePosition, documents: Iterable[rows.Document], *, keep_sums: bool) -> None:
        self.position = position
        self.documents = {(each.kind, each.key): each for each in documents}
        self.sums = self.sums if keep_sums else {}

    def update(
        self,
        now: StorePosition,
        documents: Iterable[rows.Document],
        buckets: Iterable[rows.CountBucket] = (),
        since: int = 0,
    ) -> None:
        """Add rows that were read or committed. Buckets that start before `since` may be forgotten."""
        self.position = now
        for each in documents:
            known = self.documents.get((each.kind, each.key))
            if known is None or known.version <= each.version:
                self.documents[each.kind, each.key] = each
        self.sums.update({(each.series, each.key, each.start): (each.good, each.bad) for each in buckets})
        if len(self.sums) > self._max_sums:
            self.sums = {key: sums for key, sums in self.sums.items() if key[2] >= since}
            self._max_sums = 2 * len(self.sums) + _MIN_SUMS_KEPT


class Database:
    def __init__(self, connection: DatabaseConnection, snapshot: StoreSnapshot) -> None:
        self.connection = connection
        self.snapshot = snapshot
        self._execute = connection.execute
        self._execute_each = connection.execute_each

    def change(
        self, change_id: str, edits: Sequence[rows.DocumentEdit], audit: rows.AuditRow
    ) -> tuple[rows.Document, ...]:
        """Commit validated edits and the audit row, at most once per `change_id`. Return the new documents. Raises
        StoreConflict if a document does not have the version that its edit expects."""
        with self.transaction():
            seq = self._raise_counter("seq", 1)
            made = self._execute("SELECT seq FROM audit WHERE change_id = ?", (change_id,))
            if made:
                seq = int(made[0][0])
            by = (audit.at_ms, audit.who)
            documents = tuple(rows.Document(edit.kind, edit.key, seq, edit.body, *by) for edit in edits)
            if not made:
                for edit, document in zip(edits, documents, strict=True):
                    known = self._documents("kind = ? AND key = ?", edit.kind, edit.key)
                    current = known[0] if known and known[0].body is not None else None
                    if edit.expected_version != (current.version if current else 0):
                        raise rows.StoreConflict(edit.kind, edit.key, current)
                    self._write_document(document)
                self._write_audit(audit, seq, change_id)
            position = self.position()
        self.snapshot.update(position, documents)
        return documents

    def write(self, batch: rows.WriteBatch, writer: str, now_ms: int) -> None:
        """Write a batch unless `writer` has already written it."""
        with self.transaction():
            seq = self._raise_counter("seq", 1)
            written = self._execute("SELECT batch FROM writers WHERE writer = ?", (writer,))
            if written and int(written[0][0]) >= batch.number:
                return
            self._execute(
                "INSERT INTO writers (writer, batch, at_ms) VALUES (?, ?, ?) "
                "ON CONFLICT (writer) DO UPDATE SET batch = excluded.batch, at_ms = excluded.at_ms",
                (writer, batch.number, now_ms),
            )
            self._execute_each(
                "INSERT INTO buckets (series, key, start, good, bad, seq) VALUES (?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (series, key, start) DO UPDATE SET good = buckets.good + excluded.good, "
                "bad = buckets.bad + excluded.bad, seq = excluded.seq",
                [(*key, good, bad, seq) for key, (good, bad) in batch.counts.items()],
            )
            self._execute_each(
                f"INSERT INTO receipts (number, {RECEIPT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) "  # noqa: S608
                "ON CONFLICT (request_id) DO UPDATE SET number = excluded.number, at_ms = excluded.at_ms, "
                "raw = excluded.raw, tenant = excluded.tenant, specialist = excluded.specialist, "
                "outcome = excluded.outcome, judged = excluded.judged",
                [(number, *_receipt_values(row)) for number, row in self._numbered("receipts", batch.receipts)],
            )
            self._execute_each(
                "INSERT INTO comparisons (number, at_ms, request_id, raw, text) VALUES (?, ?, ?, ?, ?)",
                [
                    (n, row.at_ms, row.request_id, row.raw, row.text or None)
                    for n, row in self._numbered("comparisons", batch.comparisons)
                ],
            )
            self._execute_each(
                "UPDATE receipts SET judged = ? WHERE request_id = ? AND at_ms = ?",
                [(row.judged, row.request_id, row.at_ms) for row in batch.verdicts],
            )

    def changes_after(
        self, position: StorePosition | None, since: int
    ) -> tuple[StorePosition, rows.StoreChanges | None]:
        """Return the current position, and any changes since `position`, without buckets that start before `since`."""
        if position is not None and self.position() == position:
            return position, None
        with self.transaction(reading=True):
            now = self.position()
            whole, after = now.resume(position)
            if not whole:
                audit = self._audit("seq > ? ORDER BY number DESC LIMIT ?", after, _MAX_AUDIT_CHANGES)[::-1]
            else:  # report only the note on how this database replaced the previous one
                note = "who = 'octet' AND subject = 'store' AND before = ? ORDER BY number DESC LIMIT 1"
                audit = [] if position is None else self._audit(note, position.name)
            documents = [each for each in self.documents_after(after) if each.body is not None or not whole]
            buckets = self._buckets("seq > ? AND start >= ?", after, since)
        self.snapshot.update(now, documents, buckets, since)
        return now, rows.StoreChanges(now.seq, documents, buckets, audit, whole)

    def documents(self) -> list[rows.Document]:
        return [each for each in self.documents_after(0) if each.body is not None]

    def documents_after(self, version: int) -> list[rows.Document]:
        return self._documents("version > ? ORDER BY version, kind, key", version)

    def buckets(self, series: str, since: int) -> list[rows.CountBucket]:
        return self._buckets("series = ? AND start >= ?", series, since)

    def receipt(self, request_id: str) -> rows.ReceiptRow | None:
        found = self._execute(f"SELECT {RECEIPT_COLUMNS} FROM receipts WHERE request_id = ?", (request_id,))  # noqa: S608
        return receipt_from_row(found[0]) if found else None

    def comparisons(
        self, since_ms: int, after: int, most: int, texts_since_ms: int = 0
    ) -> list[tuple[int, rows.ComparisonRow]]:
        """Read a page of comparisons, oldest first. Texts from before `texts_since_ms` have expired: they are left
        out, even if they are not deleted yet."""
        found = self._execute(
            "SELECT number, at_ms, request_id, raw, text FROM comparisons "
            "WHERE number > ? AND at_ms >= ? ORDER BY number LIMIT ?",
            (after, since_ms, most),
        )
        texts = (bytes(row[4] or b"") if int(row[1]) >= texts_since_ms else b"" for row in found)
        return [
            (int(number), rows.ComparisonRow(int(at_ms), name, bytes(raw), text))
            for (number, at_ms, name, raw, _), text in zip(found, texts, strict=True)
        ]

    def audit(self, most: int, subject: str, before: int) -> list[rows.AuditRow]:
        wanted, values = ("subject = ? AND ", (subject,)) if subject else ("", ())
        return self._audit(f"{wanted}number < ? ORDER BY number DESC LIMIT ?", *values, before, most)

    def find_audit(self, subjects: Sequence[str], since_ms: int, until_ms: int, most: int) -> list[rows.AuditRow]:
        wanted = f"subject IN ({', '.join('?' * len(subjects))}) AND at_ms >= ? AND at_ms <= ?"
        return self._audit(f"{wanted} ORDER BY number DESC LIMIT ?", *subjects, since_ms, until_ms, most)

    def position(self) -> StorePosition:
        found = self._execute("SELECT identity, seq, audits FROM meta")
        if len(found) != 1:
            raise StoreConnectionLost(META_ROW_LOST)
        return StorePosition(found[0][0], int(found[0][1]), int(found[0][2]))

    def advance(self) -> StorePosition:
        """Within `transaction`, lock out other writers and take the next sequence number."""
        self._raise_counter("seq", 1)
        return self.position()

    def rename(self, identity: str) -> StorePosition:
        """Within `transaction`, give the database a new identity: every process then sees it as another database."""
        self._execute("UPDATE meta SET identity = ?", (identity,))
        return self.position()

    def restore(
        self,
        position: StorePosition,
        documents: Sequence[rows.Document],
        sums: Mapping[rows.BucketKey, rows.BucketCounts],
        *,
        keep_versions: bool,
    ) -> int:
        """Within `transaction`, restore counters, documents and missing counts. Return how many counts were added."""
        self._execute("UPDATE meta SET seq = ?, audits = ?", (position.seq, position.audits))
        for each in documents:
            self._write_document(each if keep_versions else each._replace(version=position.seq))
        ((before,),) = self._execute("SELECT COUNT(*) FROM buckets")
        self._execute_each(
            "INSERT INTO buckets (series, key, start, good, bad, seq) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (series, key, start) DO NOTHING",
            [(*key, good, bad, position.seq) for key, (good, bad) in sums.items()],
        )
        ((after,),) = self._execute("SELECT COUNT(*) FROM buckets")
        return int(after) - int(before)

    def write_note(self, what: str, why: str, before: StorePosition, after: StorePosition) -> None:
        """Within `transaction`, write an audit row by `octet` about the database itself."""
        at_ms = round(self.snapshot.wall() * 1000)
        row = rows.AuditRow(0, at_ms, "octet", why, what, "store", before.name, after.name)
        self._write_audit(row, self.position().seq, token_hex(16))

    def find_note(self, what: str, before: StorePosition) -> int | None:
        found = self._execute(
            "SELECT seq FROM audit WHERE who = 'octet' AND what = ? AND subject = 'store' AND before = ? "
            "ORDER BY number DESC LIMIT 1",
            (what, before.name),
        )
        return int(found[0][0]) if found else None

    @contextmanager
    def transaction(self, *, reading: bool = False) -> Iterator[None]:
        connection = self.connection
        if reading:
            connection.begin_reading()
        else:
            connection.begin()
        try:
            yield
        except StoreConnectionLost:
            raise  # the connection will be closed, which ends the transaction
        except BaseException:
            connection.rollback()
            raise
        if reading:
            connection.rollback()
        else:
            connection.commit()

    def _raise_counter(self, counter: str, by: int) -> int:
        self._execute(f"UPDATE meta SET {counter} = {counter} + ?", (by,))  # noqa: S608
        ((value,),) = self._execute(f"SELECT {counter} FROM meta")  # noqa: S608
        return int(value)

    def _numbered(self, counter: str, new: Sequence[T]) -> Iterator[tuple[int, T]]:
        return enumerate(new, self._raise_counter(counter, len(new)) - len(new) + 1) if new else iter(())

    def _write_document(self, document: rows.Document) -> None:
        kind, key, version, body, *changed = document
        self._execute(
            f"INSERT INTO documents ({_DOCUMENT}) VALUES (?, ?, ?, ?, ?, ?) "  # noqa: S608
            "ON CONFLICT (kind, key) DO UPDATE SET version = excluded.version, body = excluded.body, "
            "changed_ms = excluded.changed_ms, changed_by = excluded.changed_by",
            (kind, key, version, None if body is None else rows.body_to_json(body), *changed),
        )

    def _write_audit(self, row: rows.AuditRow, seq: int, change_id: str) -> None:
        self._execute(
            f"INSERT INTO audit (seq, change_id, {_AUDIT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
            (seq, change_id, *row._replace(number=self._raise_counter("audits", 1))),
        )

    def _documents(self, condition: str, *values: object) -> list[rows.Document]:
        found = self._execute(f"SELECT {_DOCUMENT} FROM documents WHERE {condition}", values)  # noqa: S608
        return [
            rows.Document(kind, key, int(version), None if body is None else json.loads(body), int(at_ms), by)
            for kind, key, version, body, at_ms, by in found
        ]

    def _buckets(self, condition: str, *values: object) -> list[rows.CountBucket]:
        found = self._execute(f"SELECT series, key, start, good, bad FROM buckets WHERE {condition}", values)  # noqa: S608
        return [rows.CountBucket(series, key, *map(int, numbers)) for series, key, *numbers in found]

    def _audit(self, condition: str, *values: object) -> list[rows.AuditRow]:
        found = self._execute(f"SELECT {_AUDIT} FROM audit WHERE {condition}", values)  # noqa: S608
        return [rows.AuditRow(int(number), int(at_ms), *texts) for number, at_ms, *texts in found]


def reconcile_database(database: Database) -> None:
    """Find out whether the database was removed, emptied or replaced while the router ran, and recover. An empty or
    partly restored database is refilled with the content known to this process. A database with its own history is
    accepted: an operator put it there. Called before each use of the database."""
    snapshot = database.snapshot
    before, now = snapshot.position, database.position()
    if before is None or snapshot.continues(now):
        snapshot.position = before or now
        return
    with database.transaction():
        position = database.advance()
        is_rewound = position.identity == before.identity
        if is_rewound:  # renamed, because its numbers may catch up before every router has noticed the loss
            position = database.rename(token_hex(16))
        known = database.documents_after(0)
        if position.audits == 0 and not known:
            since: int | None = position.seq
        else:
            since = None if is_rewound else database.find_note(_RESTORED, before)
        if since is None:
            report = _TAKEN_OVER
            database.write_note("taken_over", report, before, database.position())
        else:
            report = _write_back(database, before, position, known, since)
        position, documents = database.position(), database.documents_after(0)
    snapshot.reset(position, documents, keep_sums=since is not None)
    _log.error("%s: the database %s was removed or replaced: %s", snapshot.name, before.name, report)


def _write_back(
    database: Database, before: StorePosition, position: StorePosition, known: Sequence[rows.Document], since: int
) -> str:
    """Write the content known to this process into the database, except what another router has restored already and
    documents that changed after `since`. Return a report."""
    is_empty = position.audits == 0 and not known
    now = StorePosition(position.identity, max(position.seq, before.seq + 1), max(position.audits, before.audits))
    versions = {(each.kind, each.key): each.version for each in known}
    lost = [
        each
        for key, each in database.snapshot.documents.items()
        if versions.get(key, 0) <= since and versions.get(key, 0) < each.version
    ]
    num_counts = database.restore(now, lost, database.snapshot.sums, keep_versions=is_empty)
    if not is_empty and not lost:
        return f"another router has restored all documents; {num_counts} counts were added"
    found = "the database was empty" if is_empty else "another router restored the database incompletely"
    why = f"{found}: the state of this router was written back (documents: {len(lost)}, counts: {num_counts})"
    database.write_note(_RESTORED, why, before, now)
    return why + "; receipts, comparisons and earlier audit lines are lost"


def receipt_from_row(row: DatabaseRow) -> rows.ReceiptRow:
    request_id, at_ms, raw, tenant, specialist, outcome, judged = row
    return rows.ReceiptRow(request_id, int(at_ms), bytes(raw), rows.ReceiptLabels(tenant, specialist, outcome), judged)


def _receipt_values(row: rows.ReceiptRow) -> Sequence[object]:
    labels = row.labels
    return row.request_id, row.at_ms, row.raw, labels.tenant, labels.specialist, labels.outcome, row.judged
