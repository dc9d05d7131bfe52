"""Receipts and what belongs to them, as they are looked for. Blocking, on the store's thread."""

from collections.abc import Callable, Sequence

from octet.store.database import RECEIPT, Database, receipt_row
from octet.store.rows import AuditRow, ComparisonRow, Labels, ReceiptQuery, ReceiptRow

LabelOf = Callable[[bytes], Labels]
"""Of a receipt that was written before there were labels, or by an older program."""
_BITE = 500
_MOST_CALLED = 20
_MOST_COMPARISONS = 8


class RecordTable:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._execute = database.connection.execute

    def newest(self, query: ReceiptQuery) -> list[ReceiptRow]:
        """First by the index alone: a row is read when it is known to be wanted."""
        wanted = [f"{column} = ?" for column in query.given]
        values: list[object] = list(query.given.values())
        if query.before_ms:
            wanted.append("at_ms < ?")
            values.append(query.before_ms)
        where = f"WHERE {' AND '.join(wanted)} " if wanted else ""
        rows = self._execute(
            f"SELECT {RECEIPT} FROM receipts WHERE number IN "  # noqa: S608
            f"(SELECT number FROM receipts {where}ORDER BY at_ms DESC, number DESC LIMIT ?) "
            "ORDER BY at_ms DESC, number DESC",
            (*values, query.most),
        )
        return list(map(receipt_row, rows))

    def called(self, request_id: str) -> list[ReceiptRow]:
        """Of whichever tenant."""
        tenants = [tenant for (tenant,) in self._execute("SELECT DISTINCT tenant FROM receipts")]
        names = [f"{tenant}:{request_id}" if tenant else request_id for tenant in tenants]
        found: list[ReceiptRow] = []
        for start in range(0, len(names), _BITE):
            found += self._named(names[start : start + _BITE])
        return found[:_MOST_CALLED]

    def _named(self, names: Sequence[str]) -> list[ReceiptRow]:
        places = ", ".join("?" * len(names))
        rows = self._execute(
            f"SELECT {RECEIPT} FROM receipts WHERE request_id IN ({places}) ORDER BY request_id",  # noqa: S608
            names,
        )
        return list(map(receipt_row, rows))

    def comparisons(self, request_id: str) -> list[ComparisonRow]:
        """Newest first."""
        rows = self._execute(
            "SELECT at_ms, request_id, raw FROM comparisons WHERE request_id = ? ORDER BY number DESC LIMIT ?",
            (request_id, _MOST_COMPARISONS),
        )
        return [ComparisonRow(int(at_ms), of, bytes(raw)) for at_ms, of, raw in rows]

    def changes(self, subjects: Sequence[str], since_ms: int, until_ms: int, most: int) -> list[AuditRow]:
        """Newest first."""
        places = ", ".join("?" * len(subjects))
        rows = self._execute(
            "SELECT number, at_ms, who, why, what, subject, before, after FROM audit "  # noqa: S608
            f"WHERE subject IN ({places}) AND at_ms >= ? AND at_ms <= ? ORDER BY number DESC LIMIT ?",
            (*subjects, since_ms, until_ms, most),
        )
        return [AuditRow(int(number), int(at_ms), *texts) for number, at_ms, *texts in rows]

    def sort(self, label_of: LabelOf) -> bool:
        """One bite of the receipts without labels; inside of a transaction. Whether there may be more."""
        rows = self._execute("SELECT number, raw FROM receipts WHERE outcome = '' ORDER BY number LIMIT ?", (_BITE,))
        found = [(int(number), label_of(bytes(raw))) for number, raw in rows]
        self._database.connection.execute_each(
            "UPDATE receipts SET tenant = ?, specialist = ?, outcome = ? WHERE number = ?",
            [(each.tenant, each.specialist, each.outcome, number) for number, each in found],
        )
        return len(rows) == _BITE
