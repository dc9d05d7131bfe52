"""What the audit may say of one request: its specialists, its knobs, its replicas, and the store."""

from typing import get_args

from admission.knobs import UNSPECIFIED, Knob, KnobName
from octet.v1 import inference_pb2 as wire

_STORE = "store"


def subjects_of(receipt: wire.Receipt, fallback: str = "") -> list[str]:
    """As the audit calls them. `fallback`: the primary's, who might have stood in."""
    specialists = _named(
        receipt.specialist,
        receipt.decision.primary,
        receipt.decision.second_choice,
        fallback,
        receipt.between.instead_of,
        receipt.between.shadow.specialist,
        *(attempt.specialist for attempt in receipt.attempts),
    )
    replicas = _named(receipt.replica, *(attempt.replica for attempt in receipt.attempts))
    intent = receipt.decision.intent or UNSPECIFIED
    knobs = [str(KnobName(intent, whose, knob)) for whose in (None, *specialists) for knob in get_args(Knob)]
    return _named(*specialists, *replicas, *knobs, _STORE)


def _named(*names: str) -> list[str]:
    return list(dict.fromkeys(name for name in names if name))
