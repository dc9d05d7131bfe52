"""The tables behind one connection: what is written together, and in which order it becomes visible.

Every transaction that writes begins with the row of `meta`, which nobody else can change before its end, and takes the
next number of the sequence there. So numbers become visible in their order, and whoever has read up to one has missed
nothing before it. It also makes an outcome certain: whoever holds that row sees whether a lost commit was made.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from octet.store.connection import Connection, Row
from octet.store.errors import Stale, Unavailable
from octet.store.held import Batch, Counts, Place
from octet.store.history import History, Mark
from octet.store.migrations import NO_META
from octet.store.rows import AuditRow, Body, Bucket, Changes, ComparisonRow, Document, Edit, Labels, ReceiptRow, Verdict
from octet.store.values import body_of, body_text

_MOST_NEWS = 1000
"""Audit rows told at once."""
_DOCUMENT = "kind, key, version, body, changed_ms, changed_by"
RECEIPT = "request_id, at_ms, raw, tenant, specialist, outcome, judged"
_AUDIT = "number, at_ms, who, why, what, subject, before, after"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change that was checked. Its id tells whether it was made."""

    change_id: str
    edits: Sequence[Edit]
    bodies: Sequence[str | None]
    """Of the edits, as they are written."""
    audit: AuditRow
    by: str


class Database:
    def __init__(self, connection: Connection, history: History) -> None:
        self.connection = connection
        self.history = history
        """Of what is read and committed through it."""

    def change(self, proposal: Proposal) -> tuple[Document, ...]:
        """Once, however often it is called. Raises Stale."""
        with self.writing():
            seq = self._next_seq()
            made = self.connection.execute("SELECT seq FROM audit WHERE change_id = ?", (proposal.change_id,))
            if made:
                seq = int(made[0][0])
            else:
                self._make(proposal, seq)
            mark = self.mark()
        documents = tuple(
            _changed(edit, body, seq, proposal) for edit, body in zip(proposal.edits, proposal.bodies, strict=True)
        )
        self.history.learn(mark, documents)
        return documents

    def write(self, batch: Batch, writer: str, now_ms: int) -> None:
        """Once, however often it is called."""
        with self.writing():
            seq = self._next_seq()
            if self._is_new(batch, writer, now_ms):
                self._write_counts(batch, seq)
                self._write_receipts(batch.receipts)
                self._write_comparisons(batch.comparisons)
                self._write_verdicts(batch.verdicts)

    def news(self, mark: Mark | None, since: int) -> tuple[Mark, Changes | None]:
        """What has come after `mark`; of the buckets those that begin at `since` or later."""
        if mark is not None and self.mark() == mark:
            return mark, None
        with self._reading():
            now = self.mark()
            whole = mark is None or mark.identity != now.identity or mark.seq > now.seq
            after = 0 if mark is None or whole else mark.seq
            changes = Changes(
                seq=now.seq,
                documents=[each for each in self.documents_after(after) if each.body is not None or not whole],
                buckets=self._buckets("seq > ? AND start >= ?", (after, since)),
                audit=self._notes(mark) if whole else self._audit_after(after),
                whole=whole,
            )
        self.history.learn(now, changes.documents, changes.buckets, since)
        return now, changes

    def documents(self) -> list[Document]:
        return [each for each in self.documents_after(0) if each.body is not None]

    def buckets(self, series: str, since: int) -> list[Bucket]:
        return self._buckets("series = ? AND start >= ?", (series, since))

    def receipt(self, request_id: str) -> ReceiptRow | None:
        rows = self.connection.execute(
            f"SELECT {RECEIPT} FROM receipts WHERE request_id = ?",  # noqa: S608
            (request_id,),
        )
        return receipt_row(rows[0]) if rows else None

    def comparisons(self, since_ms: int, after: int, most: int) -> list[tuple[int, ComparisonRow]]:
        """With their numbers; those that follow `after`."""
        rows = self.connection.execute(
            "SELECT number, at_ms, request_id, raw FROM comparisons "
            "WHERE number > ? AND at_ms >= ? ORDER BY number LIMIT ?",
            (after, since_ms, most),
        )
        return [(int(number), ComparisonRow(int(at_ms), of, bytes(raw))) for number, at_ms, of, raw in rows]

    def audit(self, most: int, subject: str, before: int) -> list[AuditRow]:
        """Newest first."""
        wanted, values = ("subject = ? AND ", (subject,)) if subject else ("", ())
        return self._audit(f"{wanted}number < ? ORDER BY number DESC LIMIT ?", (*values, before, most))

    def mark(self) -> Mark:
        rows = self.connection.execute("SELECT identity, seq, audits FROM meta")
        if len(rows) != 1:
            raise Unavailable(NO_META)
        return Mark(rows[0][0], int(rows[0][1]), int(rows[0][2]))

    def next_mark(self) -> Mark:
        """Inside of `writing`: nobody else changes anything from here to its end."""
        self._next_seq()
        return self.mark()

    def renamed(self, identity: str) -> Mark:
        """Inside of `writing`: another database, for whoever knew it."""
        self.connection.execute("UPDATE meta SET identity = ?", (identity,))
        return self.mark()

    def documents_after(self, version: int) -> list[Document]:
        """Deleted ones among them."""
        rows = self.connection.execute(
            f"SELECT {_DOCUMENT} FROM documents WHERE version > ? ORDER BY version, kind, key",  # noqa: S608
            (version,),
        )
        return list(map(_document, rows))

    def put_back(
        self, mark: Mark, documents: Sequence[Document], sums: Mapping[Place, Counts], *, keep_versions: bool
    ) -> int:
        """Inside of `writing`: the numbers go on from `mark`, the documents are as they were, and counts come where
        none are. How many did."""
        self.connection.execute("UPDATE meta SET seq = ?, audits = ?", (mark.seq, mark.audits))
        for each in documents:
            version = each.version if keep_versions else mark.seq
            self._store(each.kind, each.key, version, _text(each.body), each.changed_ms, each.changed_by)
        before = self._num_buckets()
        self.connection.execute_each(
            "INSERT INTO buckets (series, key, start, good, bad, seq) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (series, key, start) DO NOTHING",
            [(*place, good, bad, mark.seq) for place, (good, bad) in sums.items()],
        )
        return self._num_buckets() - before

    def note(self, row: AuditRow, change_id: str) -> None:
        """Inside of `writing`, once in each."""
        self._write_audit(row, self.mark().seq, change_id)

    def noted(self, what: str, before: Mark) -> int | None:
        """The number of the last note of Octet's own about the database that was here before."""
        rows = self.connection.execute(
            "SELECT seq FROM audit WHERE who = 'octet' AND what = ? AND subject = 'store' AND before = ? "
            "ORDER BY number DESC LIMIT 1",
            (what, before.name),
        )
        return int(rows[0][0]) if rows else None

    @contextmanager
    def writing(self) -> Iterator[None]:
        self.connection.begin()
        try:
            yield
        except Unavailable:
            raise  # the connection will be closed, and the transaction with it
        except BaseException:
            self.connection.rollback()
            raise
        self.connection.commit()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        self.connection.begin_reading()
        try:
            yield
        except Unavailable:
            raise
        except BaseException:
            self.connection.rollback()
            raise
        self.connection.rollback()

    def _next_seq(self) -> int:
        return self._raise("seq", 1)

    def _raise(self, counter: str, by: int) -> int:
        self.connection.execute(f"UPDATE meta SET {counter} = {counter} + ?", (by,))  # noqa: S608
        ((value,),) = self.connection.execute(f"SELECT {counter} FROM meta")  # noqa: S608
        return int(value)

    def _make(self, proposal: Proposal, seq: int) -> None:
        for edit, body in zip(proposal.edits, proposal.bodies, strict=True):
            self._put(edit, body, seq, proposal)
        self._write_audit(proposal.audit, seq, proposal.change_id)

    def _write_audit(self, row: AuditRow, seq: int, change_id: str) -> None:
        self.connection.execute(
            f"INSERT INTO audit (seq, change_id, {_AUDIT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
            (seq, change_id, self._raise("audits", 1), row.at_ms, *_texts(row)),
        )

    def _put(self, edit: Edit, body: str | None, seq: int, proposal: Proposal) -> None:
        rows = self.connection.execute(
            f"SELECT {_DOCUMENT} FROM documents WHERE kind = ? AND key = ?",  # noqa: S608
            (edit.kind, edit.key),
        )
        current = next((each for each in map(_document, rows) if each.body is not None), None)
        if edit.expected_version != (current.version if current else 0):
            raise Stale(edit.kind, edit.key, current)
        self._store(edit.kind, edit.key, seq, body, proposal.audit.at_ms, proposal.by)

    def _store(self, kind: str, key: str, version: int, body: str | None, changed_ms: int, changed_by: str) -> None:
        self.connection.execute(
            f"INSERT INTO documents ({_DOCUMENT}) VALUES (?, ?, ?, ?, ?, ?) "  # noqa: S608
            "ON CONFLICT (kind, key) DO UPDATE SET version = excluded.version, body = excluded.body, "
            "changed_ms = excluded.changed_ms, changed_by = excluded.changed_by",
            (kind, key, version, body, changed_ms, changed_by),
        )

    def _is_new(self, batch: Batch, writer: str, now_ms: int) -> bool:
        rows = self.connection.execute("SELECT batch FROM writers WHERE writer = ?", (writer,))
        if rows and int(rows[0][0]) >= batch.number:
            return False
        self.connection.execute(
            "INSERT INTO writers (writer, batch, at_ms) VALUES (?, ?, ?) "
            "ON CONFLICT (writer) DO UPDATE SET batch = excluded.batch, at_ms = excluded.at_ms",
            (writer, batch.number, now_ms),
        )
        return True

    def _write_counts(self, batch: Batch, seq: int) -> None:
        self.connection.execute_each(
            "INSERT INTO buckets (series, key, start, good, bad, seq) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (series, key, start) DO UPDATE SET good = buckets.good + excluded.good, "
            "bad = buckets.bad + excluded.bad, seq = excluded.seq",
            [(*place, good, bad, seq) for place, (good, bad) in batch.counts.items()],
        )

    def _write_receipts(self, rows: Sequence[ReceiptRow]) -> None:
        first = self._raise("receipts", len(rows)) - len(rows) + 1 if rows else 0
        self.connection.execute_each(
            f"INSERT INTO receipts (number, {RECEIPT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (request_id) "  # noqa: S608
            "DO UPDATE SET number = excluded.number, at_ms = excluded.at_ms, raw = excluded.raw, "
            "tenant = excluded.tenant, specialist = excluded.specialist, outcome = excluded.outcome, "
            "judged = excluded.judged",
            [(number, *_receipt_values(row)) for number, row in enumerate(rows, first)],
        )

    def _write_verdicts(self, rows: Sequence[Verdict]) -> None:
        self.connection.execute_each(
            "UPDATE receipts SET judged = ? WHERE request_id = ? AND at_ms = ?",
            [(row.judged, row.request_id, row.at_ms) for row in rows],
        )

    def _write_comparisons(self, rows: Sequence[ComparisonRow]) -> None:
        first = self._raise("comparisons", len(rows)) - len(rows) + 1 if rows else 0
        self.connection.execute_each(
            "INSERT INTO comparisons (number, at_ms, request_id, raw) VALUES (?, ?, ?, ?)",
            [(number, row.at_ms, row.request_id, row.raw) for number, row in enumerate(rows, first)],
        )

    def _buckets(self, condition: str, values: Sequence[object]) -> list[Bucket]:
        rows = self.connection.execute(
            f"SELECT series, key, start, good, bad FROM buckets WHERE {condition}",  # noqa: S608
            values,
        )
        return [Bucket(series, key, *map(int, numbers)) for series, key, *numbers in rows]

    def _num_buckets(self) -> int:
        ((number,),) = self.connection.execute("SELECT COUNT(*) FROM buckets")
        return int(number)

    def _notes(self, before: Mark | None) -> list[AuditRow]:
        """How this database came into the place of the one before."""
        if before is None:
            return []
        return self._audit(
            "who = 'octet' AND subject = 'store' AND before = ? ORDER BY number DESC LIMIT 1", (before.name,)
        )

    def _audit_after(self, seq: int) -> list[AuditRow]:
        return self._audit("seq > ? ORDER BY number DESC LIMIT ?", (seq, _MOST_NEWS))[::-1]

    def _audit(self, condition: str, values: Sequence[object]) -> list[AuditRow]:
        rows = self.connection.execute(f"SELECT {_AUDIT} FROM audit WHERE {condition}", values)  # noqa: S608
        return [AuditRow(int(number), int(at_ms), *texts) for number, at_ms, *texts in rows]


def _texts(row: AuditRow) -> Sequence[str]:
    return row.who, row.why, row.what, row.subject, row.before, row.after


def receipt_row(row: Row) -> ReceiptRow:
    """As it is selected by `RECEIPT`."""
    request_id, at_ms, raw, tenant, specialist, outcome, judged = row
    return ReceiptRow(request_id, int(at_ms), bytes(raw), Labels(tenant, specialist, outcome), judged)


def _receipt_values(row: ReceiptRow) -> Sequence[object]:
    labels = row.labels
    return row.request_id, row.at_ms, row.raw, labels.tenant, labels.specialist, labels.outcome, row.judged


def _document(row: Row) -> Document:
    kind, key, version, body, changed_ms, changed_by = row
    return Document(kind, key, int(version), _body(body), int(changed_ms), changed_by)


def _text(body: Body | None) -> str | None:
    return None if body is None else body_text(body)


def _body(text: str | None) -> Body | None:
    return None if text is None else body_of(text)


def _changed(edit: Edit, body: str | None, seq: int, proposal: Proposal) -> Document:
    return Document(edit.kind, edit.key, seq, _body(body), proposal.audit.at_ms, proposal.by)
