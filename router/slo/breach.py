"""A request that ended before its first token: whether a promise of the first token is broken by it."""

from typing import NamedTuple

from octet.v1 import error_pb2 as wire

_OURS = frozenset(
    {
        wire.ERROR_REASON_QUEUE_FULL,
        wire.ERROR_REASON_WOULD_DELAY_OTHERS,
        wire.ERROR_REASON_SHED,
        wire.ERROR_REASON_DRAINING,
        wire.ERROR_REASON_NOT_READY,
        wire.ERROR_REASON_NO_REPLICA,
        wire.ERROR_REASON_REPLICA_LOST,
        wire.ERROR_REASON_REPLICA_FAILED,
        wire.ERROR_REASON_ENGINE_FAILED,
        wire.ERROR_REASON_INTERNAL,
    }
)
"""No room, nobody there, or a failure: the caller did nothing wrong and got nothing."""
_WAITED = frozenset(
    {
        wire.ERROR_REASON_UNSPECIFIED,
        wire.ERROR_REASON_DEADLINE,
        wire.ERROR_REASON_DEADLINE_UNREACHABLE,
        wire.ERROR_REASON_CANCELLED,
        wire.ERROR_REASON_CALLER_STALLED,
    }
)
"""Time was up, or the caller left: it depends on how long it had waited. Everything else is no fault of the
specialist's, however long it took to find out."""


class Missed(NamedTuple):
    """What the caller ended itself before the target had passed, and what could not be answered by anybody, says
    nothing: it is no sample at all. Seconds."""

    reason: int
    waited: float
    """From arrival to the end."""
    given: float
    """That the caller had: from arrival to its deadline, or that of its first token."""
    accepted: float | None = None
    """From arrival until a replica took it; None where none did."""

    @property
    def since_admission(self) -> "Missed | None":
        """The same, as it looks from there."""
        if self.accepted is None:
            return None
        return Missed(self.reason, self.waited - self.accepted, self.given - self.accepted)

    def breaks(self, target: float) -> bool:
        if self.reason in _OURS or (self.waited > target and self.reason in _WAITED):
            return True
        return self.reason == wire.ERROR_REASON_DEADLINE_UNREACHABLE and self.given >= target
