"""The keys that sign tickets. All routers of a store share them."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from router.control.audit import AuditWriter, ChangeAuthor, DocumentRevision, audit_row
from router.control.state import TICKET_KEYS, SharedState
from router.dispatch.tickets import TicketKey
from router.store.rows import DocumentBody

ROTATE_SECONDS = 86_400.0
_KEPT = 2  # the newest key and the one before it, whose tickets may still be valid
_NAME = "all"
_KEY_ID_BYTES = 4
_SECRET_BYTES = 32
_ROTATED = ChangeAuthor("octet", "a key signs tickets for a day")


class TicketKeys:
    """The keys, the newest first. None exists until a router first wants one."""

    def __init__(
        self, state: SharedState, audit: AuditWriter, random_bytes: Callable[[int], bytes] = secrets.token_bytes
    ) -> None:
        self._state = state
        self._audit = audit
        self._random_bytes = random_bytes
        self._is_wanted = False

    def current(self) -> Sequence[TicketKey]:
        return self._state.documents.read(TICKET_KEYS, _NAME, _decode) or ()

    def want(self) -> None:
        """Have the next tick create a key, if there is none or the newest is too old."""
        self._is_wanted = True

    async def tick(self, now: float) -> None:
        """Create a key if one is wanted. If several routers do, the first one's is kept."""
        if not self._is_wanted:
            return
        self._is_wanted = False

        def revise(body: DocumentBody | None) -> DocumentRevision | None:
            keys = [] if body is None else list(body["keys"])
            if keys and now - keys[0]["since"] < ROTATE_SECONDS:
                return None
            fresh = {"id": self._random_bytes(_KEY_ID_BYTES).hex(), "secret": self._random_bytes(_SECRET_BYTES).hex()}
            row = audit_row(now, _ROTATED, "ticket_key", "tickets", keys[0]["id"] if keys else "", fresh["id"])
            return DocumentRevision({"keys": [{**fresh, "since": now}, *keys[: _KEPT - 1]]}, row)

        await self._audit.act(TICKET_KEYS, _NAME, revise)


def _decode(body: Mapping[str, Any]) -> tuple[TicketKey, ...]:
    return tuple(TicketKey(bytes.fromhex(each["id"]), bytes.fromhex(each["secret"])) for each in body["keys"])
