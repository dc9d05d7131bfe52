"""The control plane's documents, and compare-and-set changes to them. Audit rows state who made a change and why."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import grpc

from octet.limits import shorten
from octet.rpc.refusal import Refusal, invalid_field
from octet.v1 import error_pb2, operator_pb2
from router.refusals import store_unavailable
from router.store.rows import AuditRow, Document, DocumentBody, StoreConflict, StoreUnavailable
from router.store.store import Store

_T = TypeVar("_T")
_log = logging.getLogger(__name__)
DocumentKey = tuple[str, str]  # kind and key
MAX_WHO_CHARACTERS = 64
MAX_WHY_CHARACTERS = 500
# authors of automatic changes; operators cannot use these names
RESERVED_AUTHORS = frozenset({"breaker", "escalation", "lanes", "configuration", "octet"})
_MAX_TRIES = 8
_MAX_NAMES_LISTED = 12
_DELAYED = "; made while the store did not answer"
_OVERRULED = "; was in force at one router while the store did not answer; another change was kept instead"
# changes that every router derives by itself, from the configuration or from what replicas report
_NOT_AUDITED_LATE = ("begin_lane", "restart", "ticket_key")


@dataclass(slots=True)
class UnsavedDocument:
    version: int  # the stored version that it replaces
    rows: list[AuditRow] = field(default_factory=list)  # the audit rows of its changes, oldest first


class DocumentCache:
    def __init__(self) -> None:
        # including deleted documents, whose versions show which late reports are outdated
        self._documents: dict[DocumentKey, Document] = {}
        self._decoded: dict[DocumentKey, tuple[DocumentBody, Any]] = {}  # None for a body that cannot be decoded
        self.unsaved: dict[DocumentKey, UnsavedDocument] = {}

    def body(self, kind: str, key: str) -> DocumentBody | None:
        document = self._documents.get((kind, key))
        return None if document is None else document.body

    def version(self, kind: str, key: str) -> int:
        document = self._documents.get((kind, key))
        return 0 if document is None or document.body is None else document.version

    def of_kind(self, kind: str) -> Iterator[Document]:
        return (each for each in self._documents.values() if each.kind == kind and each.body is not None)

    def read(self, kind: str, key: str, decode: Callable[[DocumentBody], _T]) -> _T | None:
        """Return the decoded body, which is cached; None if no document exists or its body cannot be decoded."""
        place, body = (kind, key), self.body(kind, key)
        if body is None:
            return None
        known = self._decoded.get(place)
        if known is None or known[0] is not body:
            known = self._decoded[place] = (body, self._decode(place, body, decode))
        decoded: _T | None = known[1]
        return decoded

    def is_unreadable(self, kind: str, key: str) -> bool:
        known = self._decoded.get((kind, key))
        return known is not None and known[0] is self.body(kind, key) and known[1] is None

    def take(self, document: Document) -> None:
        """Accept a stored document if it is newer than the known one and the known one has no unsaved changes."""
        place = (document.kind, document.key)
        known = self._documents.get(place)
        if place not in self.unsaved and (known is None or document.version > known.version):
            self._documents[place] = document

    def replace(self, kind: str, key: str, current: Document | None) -> None:
        """Replace the known document with `current`, the stored one (None if none is stored). Drop unsaved changes."""
        self.unsaved.pop((kind, key), None)
        if current is not None:
            self._documents[kind, key] = current
        else:
            self._forget((kind, key))

    def settle(self, kind: str, key: str, stored: Document | None, num_rows: int) -> None:
        """Mark the first `num_rows` unsaved changes as saved; later ones stay unsaved. The store now holds `stored`."""
        unsaved = self.unsaved[(kind, key)]
        del unsaved.rows[:num_rows]
        if unsaved.rows:
            unsaved.version = 0 if stored is None or stored.body is None else stored.version
        else:
            self.replace(kind, key, stored)

    def take_all(self, documents: Iterable[Document]) -> None:
        for place in [place for place in self._documents if place not in self.unsaved]:
            self._forget(place)
        for document in documents:
            self.take(document)

    def put_unsaved(self, kind: str, key: str, body: DocumentBody | None, row: AuditRow) -> None:
        place = (kind, key)
        unsaved = self.unsaved.setdefault(place, UnsavedDocument(self.version(kind, key)))
        unsaved.rows.append(row)
        known = self._documents.get(place) or Document(kind, key, 0, None, row.at_ms, row.who)
        self._documents[place] = known._replace(body=body, changed_ms=row.at_ms, changed_by=row.who)

    def _forget(self, place: DocumentKey) -> None:
        self._documents.pop(place, None)
        self._decoded.pop(place, None)

    def _decode(self, place: DocumentKey, body: DocumentBody, decode: Callable[[DocumentBody], _T]) -> _T | None:
        try:
            return decode(body)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            _log.error("the stored %s of %s cannot be decoded and is left unchanged: %s", *place, error)
            return None


class ChangeAuthor(NamedTuple):
    who: str
    why: str


def check_author(who: str, why: str) -> ChangeAuthor:
    name = _check_text("change.who", who, MAX_WHO_CHARACTERS)
    if name.casefold() in RESERVED_AUTHORS:
        limit = f"a name that is not reserved (reserved names are {', '.join(sorted(RESERVED_AUTHORS))})"
        raise invalid_field("change.who", limit, name)
    return ChangeAuthor(name, _check_text("change.why", why, MAX_WHY_CHARACTERS))


def _check_text(field: str, text: str, most: int) -> str:
    text = text.strip()
    if not 0 < len(text) <= most or not text.isprintable():
        raise invalid_field(field, f"1 to {most} printable characters", shorten(text))
    return text


def audit_row(now: float, author: ChangeAuthor, what: str, subject: str, before: str, after: str) -> AuditRow:
    """Return an audit row; the store will assign its number. `now` is in Unix seconds."""
    return AuditRow(0, round(now * 1000), author.who, author.why, what, subject, before, after)


def audit_to_wire(row: AuditRow) -> operator_pb2.AuditEntry:
    same = {name: getattr(row, name) for name in ("number", "who", "why", "what", "subject", "before", "after")}
    return operator_pb2.AuditEntry(at_unix_ms=row.at_ms, **same)


class DocumentRevision(NamedTuple):
    body: DocumentBody | None  # None deletes the document
    row: AuditRow


# computes a revision of the current document; returns None for no change; may be called repeatedly
ReviseDocument = Callable[[DocumentBody | None], DocumentRevision | None]
# merges the stored body with this router's body; returns None to keep the stored body
MergeBodies = Callable[[DocumentBody, DocumentBody], DocumentBody | None]


@dataclass(eq=False)
class AuditWriter:
    _store: Store
    _documents: DocumentCache
    _merges: Mapping[str, MergeBodies]  # by document kind
    _report_unsaved: Callable[[AuditRow], None]  # called for changes in force here that are not stored yet
    # changes to one document wait for each other here, so that only other routers can conflict
    _locks: defaultdict[DocumentKey, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def order(self, kind: str, key: str, revise: ReviseDocument) -> None:
        """Make and store an operator's change. Raises Refusal if it cannot be stored, and whatever `revise` raises."""
        async with self._locks[kind, key]:
            if (kind, key) in self._documents.unsaved:
                await self._save(kind, key)
                if (kind, key) in self._documents.unsaved:
                    why = self._store.trouble or "an earlier change is not stored yet"
                    raise store_unavailable(f"the change could not be stored: {why}")
            try:
                made = await self._change(kind, key, revise)
            except StoreUnavailable as unavailable:
                if unavailable.certain:
                    raise store_unavailable(f"the change could not be stored: {unavailable}") from None
                raise store_unavailable(f"{unavailable}; see the audit log when the store answers again") from None
            if made is None:
                message = f"{kind} {key} was changed by other routers {_MAX_TRIES} times during this change"
                code = grpc.StatusCode.ABORTED
                raise Refusal(error_pb2.ERROR_REASON_CONFLICT, f"{message}; try again", code=code)

    async def act(self, kind: str, key: str, revise: ReviseDocument) -> bool:
        """Make an automatic change; if the store is unavailable, store it later. Return whether anything changed."""
        async with self._locks[kind, key]:
            if self._documents.is_unreadable(kind, key):
                return False
            revision = revise(self._documents.body(kind, key))
            if revision is None:
                return False
            if self._store.trouble or (kind, key) in self._documents.unsaved:
                self._apply_unsaved(kind, key, revision)
                return True
            try:
                return bool(await self._change(kind, key, revise))
            except StoreUnavailable as unavailable:
                _log.error("storing %s %s failed: %s", kind, key, unavailable)
                revision = revise(self._documents.body(kind, key))
                if revision is not None:
                    self._apply_unsaved(kind, key, revision)
                return revision is not None

    async def note(self, row: AuditRow) -> bool:
        """Write an audit row without changing a document. Return whether it was stored."""
        try:
            await self._store.change_all([], row)
        except StoreUnavailable as unavailable:
            _log.error("the audit log lacks %s %s (%s): %s", row.what, row.subject, row.why, unavailable)
            return False
        return True

    async def save_pending(self, _: float = 0.0) -> None:
        for kind, key in list(self._documents.unsaved):
            async with self._locks[kind, key]:
                if self._store.trouble:
                    return
                if (kind, key) in self._documents.unsaved:
                    await self._save(kind, key)

    async def _change(self, kind: str, key: str, revise: ReviseDocument) -> bool | None:
        """Make a change in the store. Return whether anything changed; None if other routers wrote first each time."""
        documents = self._documents
        for _ in range(_MAX_TRIES):
            if documents.is_unreadable(kind, key):
                raise conflict(f"another version of Octet wrote the stored {kind} {key}, which this one cannot read")
            revision = revise(documents.body(kind, key))
            if revision is None:
                return False
            version = documents.version(kind, key)
            try:
                document = await self._store.change(kind, key, version, revision.body, revision.row)
            except StoreConflict as stale:
                current = stale.current
                if current is not None:
                    documents.take(current)
                if documents.version(kind, key) != (current.version if current else 0):
                    documents.replace(kind, key, current)
                continue
            documents.take(document)
            return True
        _log.warning("%s %s was changed by other routers during %d tries", kind, key, _MAX_TRIES)
        return None

    def _apply_unsaved(self, kind: str, key: str, revision: DocumentRevision) -> None:
        row = revision.row
        _log.error("%s %s (%s) applies only to this router: the store does not answer", row.what, row.subject, row.why)
        self._documents.put_unsaved(kind, key, revision.body, row)
        self._report_unsaved(row)

    async def _save(self, kind: str, key: str) -> None:
        try:
            await self._try_save(kind, key, self._documents.unsaved[(kind, key)].rows[:])
        except (StoreUnavailable, Refusal) as error:
            _log.error("the change of %s %s is still not stored: %s", kind, key, error)

    async def _try_save(self, kind: str, key: str, rows: list[AuditRow]) -> None:
        """Save the unsaved changes. If other routers have changed the document, merge both versions or keep theirs."""
        version, own = self._documents.unsaved[(kind, key)].version, self._documents.body(kind, key)
        body, num_rows = own, len(rows)
        for _ in range(_MAX_TRIES):
            try:
                row = _with_remark(rows[-1], _DELAYED)
                stored: Document | None = await self._store.change(kind, key, version, body, row)
                notes = [_with_remark(row, _DELAYED) for row in rows[:-1]]
            except StoreConflict as stale:
                stored = stale.current
                body, version = self._reconcile(kind, stored, own), stored.version if stored else 0
                if body is not None:
                    rows = [*(row for row in rows[:-1] if row.what not in _NOT_AUDITED_LATE), rows[-1]]
                    continue
                is_own = (stored.body if stored else None) == own
                overruled = () if is_own else (row for row in rows if row.what not in _NOT_AUDITED_LATE)
                notes = [_with_remark(row, _OVERRULED) for row in overruled]
            self._documents.settle(kind, key, stored, num_rows)
            for note in notes:
                await self.note(note)
            return

    def _reconcile(self, kind: str, stored: Document | None, own: DocumentBody | None) -> DocumentBody | None:
        if stored is None or stored.body is None:
            return own
        merge = self._merges.get(kind)
        return None if merge is None or own is None or stored.body == own else merge(stored.body, own)


def _with_remark(row: AuditRow, remark: str) -> AuditRow:
    return row._replace(number=0, why=row.why + remark)


def unknown_name(field: str, name: str, known: Iterable[str]) -> Refusal:
    names = list(known)
    more = ", ..." if len(names) > _MAX_NAMES_LISTED else ""
    listed = f"one of {', '.join(names[:_MAX_NAMES_LISTED])}{more}" if names else "unset, because none is configured"
    reason, message = error_pb2.ERROR_REASON_UNKNOWN_NAME, f"{field}: there is no {shorten(name)}; it must be {listed}"
    return Refusal(reason, message, field=field, limit=listed, value=shorten(name))


def conflict(message: str, field: str = "") -> Refusal:
    return Refusal(error_pb2.ERROR_REASON_CONFLICT, message, field=field)
