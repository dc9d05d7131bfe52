"""How the figures of every specialist came to be what they are."""

from dataclasses import dataclass
from types import MappingProxyType

from octet.sdk.operating import Record


@dataclass(frozen=True, slots=True)
class Point(Record):
    """Latencies in seconds, rates a second; None without samples."""

    at_unix_ms: int
    ttft_p95: float | None
    itl_p95: float | None
    admission_to_first_token_p95: float | None
    pass_rate: float | None
    requests: float
    refused: float
    completion_tokens: float
    waiting: int
    running: int
    blocks_used: float | None
    """Share of all blocks."""
    cache_reuse: float | None
    burn: float | None
    """The worst of its objectives, over the shortest window."""


@dataclass(frozen=True, slots=True)
class SpecialistHistory(Record):
    KINDS = MappingProxyType({"points": Point})

    name: str
    points: tuple[Point, ...]
    """Oldest first."""


@dataclass(frozen=True, slots=True)
class History(Record):
    KINDS = MappingProxyType({"specialists": SpecialistHistory})

    step_seconds: float
    specialists: tuple[SpecialistHistory, ...]
