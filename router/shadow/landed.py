"""How a shadow that is traced went."""

from dataclasses import dataclass

from octet.v1 import inference_pb2 as wire
from router.between.shadowing import ShadowOrder
from router.shadow.tally import Ending


@dataclass(frozen=True, slots=True)
class Landed:
    primary: wire.Receipt
    """Of the request that it is a copy of, as it stood when the copy was sent."""
    order: ShadowOrder
    replica: str
    span_id: str
    """What the replica was told."""
    began: float
    """On a clock that only runs forward, as is the next."""
    ended: float
    ending: Ending
    usage: wire.Usage
