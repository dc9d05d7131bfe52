"""The database schema, version by version. A released migration is never edited."""

from collections.abc import Sequence

from router.store.connection import DatabaseConnection, StoreConnectionLost

META_ROW_LOST = "the table meta has no row: restore a backup or remove all tables"
Migration = Sequence[str]  # statements; {blob} stands for the column type of bytes

INITIAL_SCHEMA: Migration = (
    """CREATE TABLE meta (
        one INTEGER PRIMARY KEY CHECK (one = 1), schema_version BIGINT NOT NULL, seq BIGINT NOT NULL,
        audits BIGINT NOT NULL, receipts BIGINT NOT NULL, comparisons BIGINT NOT NULL, identity TEXT NOT NULL,
        ensemble TEXT NOT NULL
    )""",
    """CREATE TABLE documents (
        kind TEXT NOT NULL, key TEXT NOT NULL, version BIGINT NOT NULL, body TEXT, changed_ms BIGINT NOT NULL,
        changed_by TEXT NOT NULL, PRIMARY KEY (kind, key)
    )""",
    "CREATE INDEX documents_version ON documents (version)",
    """CREATE TABLE audit (
        number BIGINT PRIMARY KEY, seq BIGINT NOT NULL UNIQUE, change_id TEXT NOT NULL UNIQUE, at_ms BIGINT NOT NULL,
        who TEXT NOT NULL, why TEXT NOT NULL, what TEXT NOT NULL, subject TEXT NOT NULL, before TEXT NOT NULL,
        after TEXT NOT NULL
    )""",
    "CREATE INDEX audit_subject ON audit (subject, number)",
    """CREATE TABLE buckets (
        series TEXT NOT NULL, key TEXT NOT NULL, start BIGINT NOT NULL, good BIGINT NOT NULL, bad BIGINT NOT NULL,
        seq BIGINT NOT NULL, PRIMARY KEY (series, key, start)
    )""",
    "CREATE INDEX buckets_seq ON buckets (seq)",
    "CREATE INDEX buckets_start ON buckets (start)",
    """CREATE TABLE receipts (
        number BIGINT PRIMARY KEY, request_id TEXT NOT NULL UNIQUE, at_ms BIGINT NOT NULL, raw {blob} NOT NULL
    )""",
    """CREATE TABLE comparisons (
        number BIGINT PRIMARY KEY, at_ms BIGINT NOT NULL, request_id TEXT NOT NULL, raw {blob} NOT NULL
    )""",
    """CREATE TABLE writers (
        writer TEXT PRIMARY KEY, batch BIGINT NOT NULL, at_ms BIGINT NOT NULL
    )""",
)
ADD_JOBS: Migration = (
    """CREATE TABLE jobs (
        id TEXT PRIMARY KEY, number BIGINT NOT NULL UNIQUE, tenant TEXT NOT NULL, caller TEXT NOT NULL,
        idempotency_key TEXT, digest TEXT NOT NULL, priority BIGINT NOT NULL, status TEXT NOT NULL,
        submitted_ms BIGINT NOT NULL, deadline_ms BIGINT NOT NULL, started_ms BIGINT, ended_ms BIGINT,
        due_ms BIGINT NOT NULL, owner TEXT NOT NULL, epoch BIGINT NOT NULL, beat BIGINT NOT NULL,
        attempts BIGINT NOT NULL, lost BIGINT NOT NULL, events BIGINT NOT NULL, num_bytes BIGINT NOT NULL,
        request {blob} NOT NULL, result {blob} NOT NULL, UNIQUE (tenant, idempotency_key)
    )""",
    "CREATE INDEX jobs_status ON jobs (status, owner)",
    "CREATE INDEX jobs_tenant ON jobs (tenant, number)",
    """CREATE TABLE job_events (
        job TEXT NOT NULL, number BIGINT NOT NULL, raw {blob} NOT NULL, PRIMARY KEY (job, number)
    )""",
)
ADD_RECEIPT_LABELS: Migration = (
    "ALTER TABLE receipts ADD COLUMN tenant TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE receipts ADD COLUMN specialist TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE receipts ADD COLUMN outcome TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE receipts ADD COLUMN judged TEXT NOT NULL DEFAULT ''",
    "CREATE INDEX receipts_newest ON receipts (at_ms, number, specialist, outcome, tenant)",
    "CREATE INDEX receipts_unsorted ON receipts (number) WHERE outcome = ''",
    "CREATE INDEX comparisons_request ON comparisons (request_id, number)",
)
"""For finding receipts by tenant, specialist and outcome. The index contains the labels and is read newest first, so
that rows of the table that do not match are never read."""
ADD_SLICES: Migration = (
    """CREATE TABLE slices (
        writer TEXT NOT NULL, series TEXT NOT NULL, key TEXT NOT NULL, start_ms BIGINT NOT NULL,
        span_ms BIGINT NOT NULL, until_ms BIGINT NOT NULL, seq BIGINT NOT NULL, raw {blob} NOT NULL,
        PRIMARY KEY (writer, series, key, start_ms, span_ms)
    )""",
    "CREATE INDEX slices_seq ON slices (seq)",
    "CREATE INDEX slices_until ON slices (until_ms)",
)
ADD_RESPONSES: Migration = (
    """CREATE TABLE responses (
        id TEXT PRIMARY KEY, tenant TEXT NOT NULL, created_ms BIGINT NOT NULL, session TEXT NOT NULL,
        input {blob} NOT NULL, response {blob} NOT NULL, num_bytes BIGINT NOT NULL
    )""",
    "CREATE INDEX responses_age ON responses (created_ms, id, tenant, num_bytes)",
)
"""The index contains all that pruning reads, so that it never reads the texts."""
ADD_COMPARISON_TEXTS: Migration = (
    "ALTER TABLE comparisons ADD COLUMN text {blob}",
    "CREATE INDEX comparisons_text ON comparisons (number, at_ms) WHERE text IS NOT NULL",
)
INDEX_ENDED_JOBS: Migration = ("CREATE INDEX jobs_ended ON jobs (status, ended_ms)",)
"""For how long the last jobs took."""
MIGRATIONS: Sequence[Migration] = (
    *(INITIAL_SCHEMA, ADD_JOBS, ADD_RECEIPT_LABELS, ADD_SLICES, ADD_RESPONSES),
    *(ADD_COMPARISON_TEXTS, INDEX_ENDED_JOBS),
)


def migrate(connection: DatabaseConnection, ensemble: str, identity: str, migrations: Sequence[Migration]) -> None:
    """Apply the missing migrations, each in its own transaction. A new database gets the given identity. Raises
    StoreConnectionLost for a database with a newer schema or one that belongs to another ensemble."""
    while True:
        connection.begin()
        version = 0
        if connection.has_tables():
            rows = connection.execute("SELECT schema_version, ensemble FROM meta")
            if len(rows) != 1:
                raise StoreConnectionLost(META_ROW_LOST)
            version, owner = int(rows[0][0]), rows[0][1]
            if owner != ensemble:
                raise StoreConnectionLost(f"the database belongs to ensemble {owner!r}; {ensemble!r} needs its own")
        if version > len(migrations):
            limit = f"this program supports at most version {len(migrations)}: update octet"
            raise StoreConnectionLost(f"the schema has version {version}, but {limit}")
        if version == len(migrations):
            connection.rollback()
            return
        for statement in migrations[version]:
            connection.execute(statement.format(blob=connection.blob))
        if version == 0:
            connection.execute("INSERT INTO meta VALUES (1, 1, 0, 0, 0, 0, ?, ?)", (identity, ensemble))
        else:
            connection.execute("UPDATE meta SET schema_version = ?", (version + 1,))
        connection.commit()
