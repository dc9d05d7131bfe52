"""A database that was removed, emptied or exchanged under a router that runs.

An empty one gets back what is known here: nobody ordered that it be forgotten. One with a history of its own counts as
it is: somebody has put it there.
"""

import logging
from collections.abc import Sequence
from secrets import token_hex

from octet.store.database import Database
from octet.store.history import History, Mark
from octet.store.rows import AuditRow, Document

_log = logging.getLogger("octet.store")
_RESTORED = "restored"


def recognise(database: Database) -> None:
    """Before anything else is done with it."""
    history = database.history
    before, now = history.mark, database.mark()
    if before is None or history.goes_on(now):
        history.mark = before or now
        return
    with database.writing():
        mark = database.next_mark()
        is_rewound = mark.identity == before.identity
        if is_rewound:  # its numbers may catch up before everybody has seen that they went back
            mark = database.renamed(token_hex(16))
        known = database.documents_after(0)
        since = mark.seq if _is_empty(mark, known) else None if is_rewound else database.noted(_RESTORED, before)
        said = _taken_over(database, before) if since is None else _write_back(database, before, mark, known, since)
        mark, documents = database.mark(), database.documents_after(0)
    history.begin_anew(mark, documents, with_sums=since is not None)
    _log.error("%s: the database %s was removed or exchanged: %s", history.name, before.name, said)


def _is_empty(mark: Mark, known: Sequence[Document]) -> bool:
    return mark.audits == 0 and not known


def _write_back(database: Database, before: Mark, mark: Mark, known: Sequence[Document], since: int) -> str:
    """Up to number `since` it holds what routers have written back: what another did not know is added, and what was
    changed later stands."""
    is_empty = _is_empty(mark, known)
    now = Mark(mark.identity, max(mark.seq, before.seq + 1), max(mark.audits, before.audits))
    there = {(each.kind, each.key): each.version for each in known}
    lost = [
        each
        for place, each in database.history.documents.items()
        if there.get(place, 0) <= since and there.get(place, 0) < each.version
    ]
    num_counts = database.put_back(now, lost, database.history.sums, keep_versions=is_empty)
    if not is_empty and not lost:
        return f"another router has restored it, and knew all that is known here; {num_counts} counts were added"
    found = "the database was empty" if is_empty else "another router restored the database without"
    why = f"{found}: what was known here was written back (documents: {len(lost)}, counts: {num_counts})"
    database.note(_row(database.history, _RESTORED, why, before, now), token_hex(16))
    return why + "; receipts, comparisons and earlier lines of the audit are gone"


def _taken_over(database: Database, before: Mark) -> str:
    why = "another history lies in its place: what it says is in force, and nothing of what was known here"
    database.note(_row(database.history, "taken_over", why, before, database.mark()), token_hex(16))
    return why


def _row(history: History, what: str, why: str, before: Mark, after: Mark) -> AuditRow:
    return AuditRow(0, round(history.wall() * 1000), "octet", why, what, "store", before.name, after.name)
