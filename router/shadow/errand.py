"""A copy that is to be sent."""

from collections.abc import Callable
from dataclasses import dataclass

from octet.v1 import specialist_pb2 as wire
from router.between.shadowing import ShadowOrder
from router.dispatch.quarantine import Content
from router.reception.trace import Hop
from router.replicas.replica import Replica


@dataclass(frozen=True, slots=True)
class ShadowErrand:
    order: ShadowOrder
    num_bytes: int
    """Of the request, about, before it is composed."""
    compose: Callable[[float], wire.GenerateRequest]
    """What a replica of the order's specialist would be asked as a primary, with so many seconds left. Called once, or
    never."""
    trace: Callable[[], Hop]
    """A span of its own."""
    may_answer: Callable[[Replica], bool]
    """Nobody else is asked."""
    content: Content
    """Of the request itself."""
