"""Whether a job that was refused is tried again, and when. Pure."""

import grpc

from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2 as wire

_FIRST_SECONDS = 0.5
_LONGEST_SECONDS = 30.0
_MOST_PATIENCE_SECONDS = 120.0
"""Of whoever refuses."""
_DOUBLINGS = 8
_WORTH_IT = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)


def seconds_until_again(refusal: Refusal, times: int, chance: float) -> float | None:
    """None: never. `times` it was tried before; `chance` is drawn from [0, 1)."""
    error = refusal.error
    is_lost = error.reason == wire.ERROR_REASON_REPLICA_LOST  # its time is for callers who wait: a job can
    has_time = error.HasField("retry_after_ms") and not is_lost
    if refusal.code not in _WORTH_IT or (error.reason == wire.ERROR_REASON_DEADLINE_UNREACHABLE and not has_time):
        return None
    if has_time:
        named: float = error.retry_after_ms / 1000
        return min(_MOST_PATIENCE_SECONDS, named)
    longest: float = min(_LONGEST_SECONDS, _FIRST_SECONDS * 2 ** min(times, _DOUBLINGS))
    return longest * (1 + chance) / 2
