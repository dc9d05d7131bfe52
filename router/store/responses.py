"""The table of stored responses, which later requests continue by id. Only callers of the same tenant find them."""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from octet.config.ensemble import StoreConfig
from router.store.connection import DatabaseConnection
from router.store.database import Database
from router.store.jobs import EndedJob, find_expired_jobs

_PAGE_ROWS = 16
_PRUNE_ROWS = 100


class ResponseRow(NamedTuple):
    id: str
    tenant: str
    created_ms: int
    session: str  # the session key of the conversation; empty if it has none
    input: bytes  # the items of the whole conversation before the answer, as JSON
    response: bytes  # the response object, as JSON

    @property
    def num_bytes(self) -> int:
        return len(self.input) + len(self.response)


class _KeepLimits(NamedTuple):
    keep: float
    kept: int
    kept_bytes: int


class ResponseTable:
    """Calls block, and run on the store's thread. Rows created at or before `since_ms` have expired."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._execute = database.connection.execute

    def put(self, row: ResponseRow) -> None:
        with self._database.transaction():
            self._database.advance()
            self._execute(
                "INSERT INTO responses (id, tenant, created_ms, session, input, response, num_bytes) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
                (*row, row.num_bytes),
            )

    def get(self, response_id: str, tenant: str, since_ms: int) -> ResponseRow | None:
        found = self._execute(
            "SELECT id, tenant, created_ms, session, input, response FROM responses "
            "WHERE id = ? AND tenant = ? AND created_ms > ?",
            (response_id, tenant, since_ms),
        )
        if not found:
            return None
        name, owner, created_ms, session, given, response = found[0]
        return ResponseRow(name, owner, int(created_ms), session, bytes(given), bytes(response))

    def find(self, ids: Sequence[str], tenant: str, since_ms: int, most_bytes: int) -> list[bytes] | None:
        """Return the response objects that exist; None if they have more than `most_bytes` in total."""
        found: list[bytes] = []
        for start in range(0, len(ids), _PAGE_ROWS):
            page = ids[start : start + _PAGE_ROWS]
            marks = ", ".join("?" * len(page))
            rows = self._execute(
                f"SELECT response FROM responses WHERE id IN ({marks}) AND tenant = ? AND created_ms > ?",  # noqa: S608
                (*page, tenant, since_ms),
            )
            found += [bytes(response) for (response,) in rows]
            if sum(map(len, found)) > most_bytes:
                return None
        return found

    def delete(self, response_id: str, tenant: str, since_ms: int) -> bool:
        with self._database.transaction():
            self._database.advance()
            mine = (response_id, tenant, since_ms)
            known = self._execute("SELECT 1 FROM responses WHERE id = ? AND tenant = ? AND created_ms > ?", mine)
            self._execute("DELETE FROM responses WHERE id = ? AND tenant = ?", mine[:2])
        return bool(known)


def oldest_kept_ms(limits: StoreConfig, now_ms: int) -> int:
    return now_ms - round(limits.responses_keep * 1000)


def prune_responses(connection: DatabaseConnection, limits: StoreConfig, now_ms: int) -> bool:
    """Delete one page of the responses beyond the limits. Return whether more are left. Of several tenants, the one
    that keeps most loses its oldest response first."""
    ((number, size, first),) = connection.execute(
        "SELECT COUNT(*), COALESCE(SUM(num_bytes), 0), COALESCE(MIN(created_ms), 0) FROM responses"
    )
    is_old = number and first <= oldest_kept_ms(limits, now_ms)
    if not is_old and number <= limits.responses and size <= limits.responses_bytes:
        return False
    rows = connection.execute("SELECT id, tenant, created_ms, num_bytes FROM responses ORDER BY created_ms, id")
    kept = (EndedJob(name, tenant, int(at), int(size)) for name, tenant, at, size in rows)
    limit = _KeepLimits(limits.responses_keep, limits.responses, limits.responses_bytes)
    expired = list(islice(find_expired_jobs(kept, limit, now_ms), _PRUNE_ROWS + 1))
    connection.execute_each("DELETE FROM responses WHERE id = ?", [(name,) for name in expired[:_PRUNE_ROWS]])
    return len(expired) > _PRUNE_ROWS
