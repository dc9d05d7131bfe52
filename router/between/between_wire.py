"""What stood between, as a receipt shows it: never more than 400 bytes."""

from octet.v1 import inference_pb2 as wire
from router.between.shadowing import ShadowOrder
from router.between.standing import Knobs, SpecialistStanding
from router.between.way import Way
from router.receipts.clip import clip, within

MAX_BYTES = 400
_NAME = 64
_WHY = 112
"""Less what `lead` takes."""
_TAG = 2
_BY = 24
_ADAPTER = 32
_ADAPTERS = 40


def between_to_wire(
    primary: SpecialistStanding, lead: str, first: Way | None, shadow: ShadowOrder | None, knobs: Knobs, why: str
) -> wire.Between:
    """`first` is who is asked first; None where nobody is. `lead` was to be, also where it is not."""
    other = clip(lead, _NAME) if lead != primary.name else ""
    return wire.Between(
        correctness=primary.correctness,
        instead_of=clip(primary.name, _NAME) if first is not None and first.specialist != primary.name else "",
        why=clip(why, _WHY - len(other.encode()) - _TAG),
        lane=_lane(first),
        shadow=None if shadow is None else _shadow(shadow),
        shadow_threshold=knobs.threshold,
        priority_floor=knobs.floor,
        knobs_by=clip(knobs.by, _BY),
        lead=other,
    )


def _lane(first: Way | None) -> str:
    if first is None or not first.lane_id:
        return ""
    return "fresh" if first.fresh else "serving"


def _shadow(shadow: ShadowOrder) -> wire.ShadowOrder:
    return wire.ShadowOrder(
        specialist=clip(shadow.way.specialist, _NAME),
        adapters=within(shadow.way.names, _ADAPTER, _ADAPTERS),
        why=shadow.why,
    )
