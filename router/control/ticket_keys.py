"""The keys that sign tickets. All routers of a store share them."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from router.control.audit import AuditWriter, ChangeAuthor, DocumentRevision, audit_row
from router.control.state import TICKET_KEYS, SharedState
from router.dispatch.tickets import TicketKey
from router.store.rows import DocumentBody

ROTATE_SECONDS = 86_400.0
SPREAD_SECONDS = (
    15.0  # until then another router may not know a new key: the clocks of routers may differ by 10 seconds
)
_KEPT = 2  # the newest key and the one before it, whose tickets may still be valid
_NAME = "all"
_KEY_ID_BYTES = 4
_SECRET_BYTES = 32
_ROTATED = ChangeAuthor("octet", "a key signs tickets for a day")


class TicketKeys:
    """The keys, first the one that signs. None exists until a router first wants one."""

    def __init__(
        self,
        state: SharedState,
        audit: AuditWriter,
        wall: Callable[[], float],
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """`wall` returns Unix seconds."""
        self._wall = wall
        self._state = state
        self._audit = audit
        self._random_bytes = random_bytes
        self._is_wanted = False

    def current(self) -> Sequence[TicketKey]:
        """Return the newest key first, but the one before it as long as other routers may not know the newest."""
        keys = self._state.documents.read(TICKET_KEYS, _NAME, _decode) or ()
        is_new = len(keys) > 1 and self._wall() - keys[0][1] < SPREAD_SECONDS
        return tuple(key for key, _ in (reversed(keys) if is_new else keys))

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
            if keys and -SPREAD_SECONDS <= now - keys[0]["since"] < ROTATE_SECONDS:
                return None  # a key from the future was made before a clock was set back
            fresh = {"id": self._random_bytes(_KEY_ID_BYTES).hex(), "secret": self._random_bytes(_SECRET_BYTES).hex()}
            row = audit_row(now, _ROTATED, "ticket_key", "tickets", keys[0]["id"] if keys else "", fresh["id"])
            return DocumentRevision({"keys": [{**fresh, "since": now}, *keys[: _KEPT - 1]]}, row)

        await self._audit.act(TICKET_KEYS, _NAME, revise)


def _decode(body: Mapping[str, Any]) -> tuple[tuple[TicketKey, float], ...]:
    """Return each key with the time of its creation."""
    found = ((TicketKey(bytes.fromhex(each["id"]), bytes.fromhex(each["secret"])), each) for each in body["keys"])
    return tuple((key, each["since"]) for key, each in found)
