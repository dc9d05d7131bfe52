"""One specialist on the way of a request."""

from collections.abc import Callable
from dataclasses import dataclass

from octet.v1 import error_pb2 as wire
from router.refusals import no_replica
from router.replicas.failure import Failure
from router.replicas.lane import Lane, anybody
from router.replicas.replica import Replica


@dataclass(frozen=True, slots=True)
class Leg:
    lane: Lane
    adapters: tuple[str, ...] = ()
    """As replicas know them."""
    is_callers: bool = False
    """The caller named the adapters."""
    may_answer: Callable[[Replica], bool] = anybody
    """Nobody else is asked, whatever happens."""

    @property
    def specialist(self) -> str:
        return self.lane.specialist

    def read(self, failure: Failure) -> Failure:
        """A replica that has not got the lane's adapters yet, because it has just come back, has not failed, and the
        caller has nothing to put right."""
        if self.is_callers or failure.refusal.error.reason != wire.ERROR_REASON_UNKNOWN_ADAPTER:
            return failure
        return Failure("free", no_replica(self.specialist))
