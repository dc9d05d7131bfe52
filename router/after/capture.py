"""Between the relay and the caller: every event passes as it is, and then a copy of it is kept."""

import logging
from collections.abc import Callable

from router.after.kept import Kept, is_chunk
from router.dispatch.relay import Write

_log = logging.getLogger(__name__)
_ROUTED = b"\x0a"
"""How an event begins that says that a replica has accepted the request."""


class Capture:
    def __init__(self, write: Write, kept: Kept, begun: Callable[[bytes], None]) -> None:
        """`begun` hears, once, that the answer has begun: with the event that a replica had accepted the request. Not
        before: until then the request stands in that replica's line, and a copy could only stand behind it."""
        self._write = write
        self._kept = kept
        self._routed: bytes | None = None
        self._begun = begun

    async def write(self, raw: bytes) -> None:
        """Raises what the caller's own write raises, and nothing else."""
        await self._write(raw)
        try:
            self._note(raw)
        except Exception:
            _log.error("an answer could not be kept", exc_info=True)

    def _note(self, raw: bytes) -> None:
        if raw[:1] == _ROUTED:
            self._routed = raw
        elif is_chunk(raw):
            self._kept.add(raw)
            routed, self._routed = self._routed, None
            if routed is not None:
                self._begun(routed)
