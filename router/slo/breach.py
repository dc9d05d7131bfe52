"""A request that ended before its first token: whether a promise of the first token is broken by it."""

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


def is_broken(reason: int, waited: float, given: float, target: float) -> bool:
    """The caller waited for so long, of the seconds that it had given. What it ended itself before the target had
    passed, and what could not be answered by anybody, says nothing: it is no sample at all."""
    if waited > target or reason in _OURS:
        return True
    return reason == wire.ERROR_REASON_DEADLINE_UNREACHABLE and given >= target
