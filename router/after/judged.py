"""How an answer that is traced was judged."""

from dataclasses import dataclass

from octet.v1 import inference_pb2 as wire
from router.verify.verdict import Outcome


@dataclass(frozen=True, slots=True)
class Judged:
    receipt: wire.Receipt
    """Of the request, whose own answer it is or a shadow's."""
    specialist: str
    verifier: str
    outcome: Outcome
    began: float
    """On a clock that only runs forward, as is the next."""
    ended: float
    is_shadow: bool
