"""Jobs that have ended are kept for a while: the oldest go first, a few at a time."""

from octet.store.database import Database
from octet.store.job_rows import JobLimits

_BITE = 64
_ENDED = "status IN ('done', 'failed', 'cancelled')"


def prune_jobs(database: Database, limits: JobLimits, now_ms: int) -> bool:
    """Whether there is more to do."""
    execute = database.connection.execute
    rows = execute(f"SELECT id, ended_ms, num_bytes FROM jobs WHERE {_ENDED} ORDER BY ended_ms DESC, number DESC")  # noqa: S608
    size = 0
    old: list[str] = []
    for place, (job_id, ended_ms, num_bytes) in enumerate(rows):
        size += int(num_bytes)
        if place >= limits.most or size > limits.most_bytes or int(ended_ms) <= now_ms - limits.keep_ms:
            old.append(job_id)
    bite = [(job_id,) for job_id in old[::-1][:_BITE]]
    if bite:
        with database.writing():
            database.next_mark()
            database.connection.execute_each("DELETE FROM job_events WHERE job = ?", bite)
            database.connection.execute_each("DELETE FROM jobs WHERE id = ?", bite)
    return len(old) > len(bite)
