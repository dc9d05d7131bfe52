"""How busy one replica is, as it reports it."""

from dataclasses import dataclass
from types import MappingProxyType

from octet.sdk.operating import Record


@dataclass(frozen=True, slots=True)
class Blocks(Record):
    """total = free + cached + used."""

    total: int
    free: int
    cached: int
    """Nobody's, but still findable by the prefix they hold."""
    used: int


@dataclass(frozen=True, slots=True)
class EstimateError(Record):
    """How far forecasts were from what came, as shares of what came."""

    step_p50: float
    step_p90: float
    total_p50: float | None
    total_p90: float | None
    num_requests: int


@dataclass(frozen=True, slots=True)
class ResidentAdapter(Record):
    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class LoadReport(Record):
    """Rates are None until measured."""

    KINDS = MappingProxyType({"blocks": Blocks, "adapters": ResidentAdapter, "estimate_error": EstimateError})

    waiting: int
    running: int
    blocks: Blocks | None
    preempting: bool
    """Somebody had to give way within the last second."""
    times_preempted: int
    """Since the start."""
    prefill_rate: float | None
    """Tokens a second."""
    decode_rate: float | None
    drain_rate: float | None
    """Requests a second that end while others wait."""
    adapters: tuple[ResidentAdapter, ...]
    draining: bool
    max_running: int
    max_waiting: int
    revision: str
    refusing: bool
    """Somebody was refused for want of capacity within the last second."""
    shadows: int
    usual_wait: float | None
    """Seconds."""
    estimate_error: EstimateError | None
    prompt_tokens: int
    """Since the start, and so the next two."""
    cache_hit_tokens: int
    evicted_blocks: int
    instance: str
    """Drawn when the process started: another one at the same address has another."""
