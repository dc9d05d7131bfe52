"""The documents in force here: those of the store, and what could not be written there yet."""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from octet.store import AuditRow, Body, Document

_log = logging.getLogger(__name__)
Place = tuple[str, str]
"""Kind and key."""
_T = TypeVar("_T")


@dataclass(slots=True)
class Unsaved:
    """A document that was changed here and could not be written down."""

    version: int
    """Of the document that it replaces."""
    rows: list[AuditRow] = field(default_factory=list)
    """What led there, oldest first."""


class Shelf:
    def __init__(self) -> None:
        self._documents: dict[Place, Document] = {}
        """Deleted ones among them: a late word of an earlier version is known by their version."""
        self._decoded: dict[Place, tuple[Body, Any]] = {}
        self._unreadable: set[Place] = set()
        self.unsaved: dict[Place, Unsaved] = {}

    def body(self, kind: str, key: str) -> Body | None:
        document = self._documents.get((kind, key))
        return None if document is None else document.body

    def version(self, kind: str, key: str) -> int:
        """0 where there is none."""
        document = self._documents.get((kind, key))
        return 0 if document is None or document.body is None else document.version

    def of_kind(self, kind: str) -> Iterator[Document]:
        return (each for each in self._documents.values() if each.kind == kind and each.body is not None)

    def read(self, kind: str, key: str, decode: Callable[[Body], _T]) -> _T | None:
        """None where there is none, or none that can be read."""
        place, body = (kind, key), self.body(kind, key)
        if body is None:
            return None
        known = self._decoded.get(place)
        if known is None or known[0] is not body:
            known = self._decoded[place] = (body, self._decode(place, body, decode))
        decoded: _T | None = known[1]
        return decoded

    def is_unreadable(self, kind: str, key: str) -> bool:
        return (kind, key) in self._unreadable

    def take(self, document: Document) -> None:
        """As the store has it. What is older than what is known, or is to be written here first, changes nothing."""
        place = (document.kind, document.key)
        known = self._documents.get(place)
        if place not in self.unsaved and (known is None or document.version > known.version):
            self._put(place, document)

    def take_over(self, kind: str, key: str, current: Document | None) -> None:
        """What the store has, whatever is known here; None: nothing."""
        self.unsaved.pop((kind, key), None)
        if current is not None:
            self._put((kind, key), current)
        else:
            self._forget((kind, key))

    def settle(self, kind: str, key: str, stored: Document | None, num_rows: int) -> None:
        """The first rows of what was unsaved are dealt with, and the store has this now. What was laid here since
        stays in force and unsaved."""
        unsaved = self.unsaved[(kind, key)]
        del unsaved.rows[:num_rows]
        if unsaved.rows:
            unsaved.version = 0 if stored is None or stored.body is None else stored.version
        else:
            self.take_over(kind, key, stored)

    def take_all(self, documents: Iterable[Document]) -> None:
        """There are no others."""
        for place in [place for place in self._documents if place not in self.unsaved]:
            self._forget(place)
        for document in documents:
            self.take(document)

    def lay(self, kind: str, key: str, body: Body | None, row: AuditRow) -> None:
        """In force here, though the store does not know it yet."""
        place = (kind, key)
        unsaved = self.unsaved.setdefault(place, Unsaved(self.version(kind, key)))
        unsaved.rows.append(row)
        known = self._documents.get(place) or Document(kind, key, 0, None, row.at_ms, row.who)
        self._put(place, replace(known, body=body, changed_ms=row.at_ms, changed_by=row.who))

    def _put(self, place: Place, document: Document) -> None:
        self._documents[place] = document
        self._unreadable.discard(place)

    def _forget(self, place: Place) -> None:
        self._documents.pop(place, None)
        self._decoded.pop(place, None)
        self._unreadable.discard(place)

    def _decode(self, place: Place, body: Body, decode: Callable[[Body], _T]) -> _T | None:
        try:
            return decode(body)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            _log.error("the %s of %s in the store cannot be read and is left alone: %s", *place, error)
            self._unreadable.add(place)
            return None
