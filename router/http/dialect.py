"""How a route is spoken to: from a body to an order, and from what is heard to what is told."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from octet.v1 import inference_pb2 as wire
from router.http.choice import Choice
from router.http.fault import Fault
from router.http.order import Order


class Telling(Protocol):
    """One answer in a dialect's own words. It does no more than put them together: nothing is sent from here."""

    def whole(self) -> Mapping[str, Any]:
        """All choices, which have ended well."""
        ...

    def told(self, choice: Choice, event: wire.InferEvent) -> bytes:
        """The events of a stream that this one makes, which the choice has heard before; empty where it makes none."""
        ...

    def ending(self) -> bytes:
        """Behind the last choice's last event."""
        ...

    def failed(self, fault: Fault) -> bytes:
        """Instead of an ending, where something had been told."""
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    order: Callable[[dict[str, Any], str], Order]
    """Of a body and the request's id. Raises Fault."""
    telling: Callable[[Order, Sequence[Choice], str, int], Telling]
    """Of the order, its choices, the request's id, and when it came: seconds since 1970."""
