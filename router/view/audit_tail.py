"""The newest lines of the audit, kept up to date by what is told."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from octet.rpc.refusal import Refusal
from octet.v1 import operator_pb2 as wire
from router.operator.controls import EventSource

_log = logging.getLogger(__name__)
MOST_ENTRIES = 20
_AGAIN_SECONDS = 5.0


class Auditor(Protocol):
    @property
    def events(self) -> EventSource: ...

    async def audit(self, most: int, subject: str) -> Sequence[wire.AuditEntry]:
        """Newest first. Raises Refusal."""


class AuditTail:
    """Belongs to the event loop."""

    def __init__(self, auditor: Auditor, again_seconds: float = _AGAIN_SECONDS) -> None:
        """Where the store does not answer it is asked again after so long."""
        self._auditor = auditor
        self._again_seconds = again_seconds
        self._entries: dict[int, wire.AuditEntry] = {}

    def entries(self) -> list[wire.AuditEntry]:
        """Newest first."""
        return list(self._entries.values())

    async def follow(self) -> None:
        """Ends when there will be no more events."""
        with self._auditor.events.subscribe() as events:
            await self._read()
            async for event in events:
                kind = event.WhichOneof("event")
                if kind == "audit":
                    self._take([event.audit])
                elif kind == "dropped" or (kind == "store_trouble" and not event.store_trouble):
                    await self._read()

    async def _read(self) -> None:
        """What is told meanwhile waits."""
        while True:
            try:
                self._take(await self._auditor.audit(MOST_ENTRIES, ""))
            except Refusal as refusal:
                _log.debug("the audit is read again later: %s", refusal)
                await asyncio.sleep(self._again_seconds)
            else:
                return

    def _take(self, entries: Sequence[wire.AuditEntry]) -> None:
        """What the store has not numbered is in no audit."""
        found = {**self._entries, **{each.number: each for each in entries if each.number}}
        newest = sorted(found, reverse=True)[:MOST_ENTRIES]
        self._entries = {number: found[number] for number in newest}
