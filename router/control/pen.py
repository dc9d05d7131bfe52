"""Every change is written down: compare and set, with who and why beside it."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from octet.rpc.refusal import Refusal
from octet.store import AuditRow, Body, Document, Stale, Store, StoreUnavailable
from router.control.refusals import conflict, not_written, outrun, perhaps_written
from router.control.shelf import Shelf

_log = logging.getLogger(__name__)
_TRIES = 8
_MISSED = "; made while the store was away"
_OVERRULED = "; was in force at one router while the store was away, and somebody else's change stands"
_NO_NEWS = ("begin_lane",)
"""What a router makes of its configuration while it knows no better."""


@dataclass(frozen=True, slots=True)
class Revision:
    body: Body | None
    """None: the document goes."""
    row: AuditRow


Revise = Callable[[Body | None], Revision | None]
"""From the document as it is to what shall be; None: nothing is to be changed. May be called again and again."""
Merge = Callable[[Body, Body], Body | None]
"""The stored and the own; None: the stored one stands."""


class Pen:
    def __init__(
        self, store: Store, shelf: Shelf, merges: Mapping[str, Merge], told: Callable[[AuditRow], None]
    ) -> None:
        """`told` hears of changes that are in force here and not in the store."""
        self._store = store
        self._shelf = shelf
        self._merges = merges
        self._told = told
        self._locks: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        """By document: changes that are made here wait for one another, and only those of other routers race."""

    async def order(self, kind: str, key: str, revise: Revise) -> None:
        """An operator's: made when it is written, or not at all. Raises Refusal, and what `revise` raises."""
        async with self._locks[kind, key]:
            await self._order(kind, key, revise)

    async def act(self, kind: str, key: str, revise: Revise) -> bool:
        """A machine's: in force at once, and written as soon as the store can. Whether anything was changed."""
        async with self._locks[kind, key]:
            return await self._act(kind, key, revise)

    async def note(self, row: AuditRow) -> bool:
        """In the audit alone. Whether it is there."""
        try:
            await self._store.change_all([], row)
        except StoreUnavailable as unavailable:
            _log.error("not in the audit (%s): %s %s: %s", unavailable, row.what, row.subject, row.why)
            return False
        return True

    async def catch_up(self) -> None:
        """Write down what could not be written before."""
        for kind, key in list(self._shelf.unsaved):
            async with self._locks[kind, key]:
                if self._store.trouble:
                    return
                if (kind, key) in self._shelf.unsaved:
                    await self._save(kind, key)

    async def _order(self, kind: str, key: str, revise: Revise) -> None:
        if (kind, key) in self._shelf.unsaved:
            await self._save(kind, key)
            if (kind, key) in self._shelf.unsaved:
                raise not_written(self._store.trouble or "an earlier change is not written down yet")
        try:
            made = await self._change(kind, key, revise)
        except StoreUnavailable as unavailable:
            raise (not_written if unavailable.certain else perhaps_written)(str(unavailable)) from None
        if made is None:
            raise outrun(f"{kind} {key}", _TRIES)

    async def _act(self, kind: str, key: str, revise: Revise) -> bool:
        if self._shelf.is_unreadable(kind, key):
            return False
        revision = revise(self._shelf.body(kind, key))
        if revision is None:
            return False
        if self._store.trouble or (kind, key) in self._shelf.unsaved:
            self._lay(kind, key, revision)
            return True
        try:
            return bool(await self._change(kind, key, revise))
        except StoreUnavailable as unavailable:
            _log.error("%s %s: %s", kind, key, unavailable)
            current = revise(self._shelf.body(kind, key))
            if current is not None:
                self._lay(kind, key, current)
            return current is not None

    async def _change(self, kind: str, key: str, revise: Revise) -> bool | None:
        """Whether anything had to be changed; None where somebody else was first again and again."""
        for _ in range(_TRIES):
            if self._shelf.is_unreadable(kind, key):
                raise conflict(f"the {kind} of {key} was written by another version of Octet and cannot be read here")
            revision = revise(self._shelf.body(kind, key))
            if revision is None:
                return False
            version = self._shelf.version(kind, key)
            try:
                document = await self._store.change(kind, key, version, revision.body, revision.row)
            except Stale as stale:
                self._overtaken(kind, key, stale.current)
                continue
            self._shelf.take(document)
            return True
        _log.warning("%s %s was changed by others %d times at this very moment", kind, key, _TRIES)
        return None

    def _overtaken(self, kind: str, key: str, current: Document | None) -> None:
        if current is not None:
            self._shelf.take(current)
        if self._shelf.version(kind, key) != (current.version if current else 0):
            self._shelf.take_over(kind, key, current)

    def _lay(self, kind: str, key: str, revision: Revision) -> None:
        row = revision.row
        _log.error("%s %s (%s) is in force here only: the store does not answer", row.what, row.subject, row.why)
        self._shelf.lay(kind, key, revision.body, row)
        self._told(row)

    async def _save(self, kind: str, key: str) -> None:
        try:
            await self._saved(kind, key, self._shelf.unsaved[(kind, key)].rows[:])
        except (StoreUnavailable, Refusal) as error:
            _log.error("%s %s is still not written down: %s", kind, key, error)

    async def _saved(self, kind: str, key: str, rows: list[AuditRow]) -> None:
        """From the stored state, whatever it is by now. Others' changes stand, unless both can."""
        version, own = self._shelf.unsaved[(kind, key)].version, self._shelf.body(kind, key)
        body = own
        for _ in range(_TRIES):
            try:
                stored: Document | None = await self._store.change(kind, key, version, body, _late(rows[-1], _MISSED))
                notes = [_late(row, _MISSED) for row in rows[:-1]]
            except Stale as stale:
                stored = stale.current
                body, version = self._reconciled(kind, stored, own), stored.version if stored else 0
                if body is not None:
                    continue
                is_own = (stored.body if stored else None) == own
                notes = [] if is_own else [_late(row, _OVERRULED) for row in rows if row.what not in _NO_NEWS]
            self._shelf.settle(kind, key, stored, len(rows))
            for note in notes:
                await self.note(note)
            return

    def _reconciled(self, kind: str, stored: Document | None, own: Body | None) -> Body | None:
        """What to write in its place; None: nothing."""
        if stored is None or stored.body is None or own is None:
            return own if stored is None or stored.body is None else None
        merge = self._merges.get(kind)
        return None if merge is None or stored.body == own else merge(stored.body, own)


def _late(row: AuditRow, remark: str) -> AuditRow:
    return replace(row, number=0, why=row.why + remark)
