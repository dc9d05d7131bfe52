"""One specialist's breaker as it is kept: what was made of each of its lanes, and the hold, which outlasts them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from admission.correctness import Hold, Standing, begin, hold, release

_NO_HOLD = Standing()


@dataclass(frozen=True, slots=True)
class Sheet:
    lanes: Mapping[str, Standing] = field(default_factory=lambda: MappingProxyType({}))
    """By lane id, without the hold."""
    held: Standing = _NO_HOLD
    """Only its hold counts."""

    def standing(self, lane_id: str, since: float) -> Standing:
        """Of a lane that has served since then."""
        return self.over(self.lanes.get(lane_id) or begin(since))

    def over(self, standing: Standing) -> Standing:
        """With the hold, if there is one."""
        held = self.held
        if held.hold is None:
            return release(standing) if standing.hold else standing
        return hold(standing, held.hold, held.hold_by, held.hold_why, held.hold_since)

    def hold(self, held: Hold, by: str, why: str, now: float) -> "Sheet":
        return replace(self, held=hold(_NO_HOLD, held, by, why, now))

    def release(self) -> "Sheet":
        return replace(self, held=_NO_HOLD)

    def with_lane(self, lane_id: str, standing: Standing, keep: Collection[str]) -> "Sheet":
        """Of the others those that are to be kept."""
        lanes = {name: each for name, each in self.lanes.items() if name in keep}
        return replace(self, lanes={**lanes, lane_id: release(standing)})

    def to_body(self) -> dict[str, Any]:
        lanes = {lane_id: standing.to_body() for lane_id, standing in self.lanes.items()}
        return {"lanes": lanes, "held": self.held.to_body()}

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> "Sheet":
        """Raises ValueError, KeyError for what is none."""
        lanes = {lane_id: Standing.from_body(each) for lane_id, each in body["lanes"].items()}
        return cls(lanes, Standing.from_body(body["held"]))


def merge(stored: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any] | None:
    """The stored hold, and of every lane what moved last. None where the own has nothing that is newer."""
    try:
        theirs, ours = Sheet.from_body(stored), Sheet.from_body(own)
    except (ValueError, KeyError, TypeError, AttributeError):  # another version's: it stands
        return None
    newer = {name: each for name, each in ours.lanes.items() if _moved_at(each) > _moved_at(theirs.lanes.get(name))}
    return replace(theirs, lanes={**theirs.lanes, **newer}).to_body() if newer else None


def _moved_at(standing: Standing | None) -> float:
    return standing.transition_at if standing is not None and standing.transition_at is not None else 0.0
