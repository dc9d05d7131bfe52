"""One lane: a model with its adapters, and what became of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from octet.identity import digest_of

Status = Literal["serving", "candidate", "previous", "retired", "rolled_back"]
HELD: tuple[Status, ...] = ("serving", "candidate", "previous")
"""Replicas keep what such lanes need."""
_SHORT_DIGEST = 12


@dataclass(frozen=True, slots=True)
class AdapterRef:
    name: str
    """What callers and operators call it."""
    load_name: str
    """What replicas call it: another for every content."""
    digest: str
    """sha256 of its content, hex."""
    path: str


@dataclass(frozen=True, slots=True)
class LaneRecord:
    number: int
    adapters: tuple[AdapterRef, ...]
    revision: str
    """sha256 of the model's content, hex."""
    status: Status
    since: float
    """Unix seconds: when it became what it is, by whom and why."""
    by: str
    why: str
    fresh: bool
    """It has too little history to be trusted."""

    @property
    def name(self) -> str:
        """Empty for the bare model."""
        return "+".join(adapter.name for adapter in self.adapters)

    @property
    def digests(self) -> tuple[str, ...]:
        return tuple(adapter.digest for adapter in self.adapters)

    def __str__(self) -> str:
        return f"lane {self.number} ({self.name or 'bare model'})"


def lane_id(specialist: str, lane: LaneRecord) -> str:
    """The same on every router that shares the store, and of no other lane."""
    digest = digest_of(part.encode() for part in (lane.revision, *lane.digests)).hex()
    return f"{specialist}|{lane.number}|{digest[:_SHORT_DIGEST]}"


def clashes(lane: LaneRecord, adapters: Sequence[AdapterRef]) -> bool:
    """Replicas know another content by the name of one of these."""
    known = {adapter.load_name: adapter.digest for adapter in lane.adapters}
    return any(known.get(adapter.load_name, adapter.digest) != adapter.digest for adapter in adapters)


def lane_of(body: Mapping[str, Any]) -> LaneRecord:
    """From what is kept of it. Raises ValueError, KeyError, TypeError for what is none."""
    adapters = tuple(AdapterRef(**adapter) for adapter in body["adapters"])
    lane = LaneRecord(**{**body, "adapters": adapters})
    if lane.status not in get_args(Status):
        raise ValueError(f"a lane is not {lane.status!r}")
    return lane
