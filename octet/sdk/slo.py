"""How well one specialist does of late. There is no such figure for all of them together."""

from dataclasses import dataclass
from types import MappingProxyType

from octet.sdk.operating import Record


@dataclass(frozen=True, slots=True)
class Latency(Record):
    """Seconds; None without samples."""

    samples: int
    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Burn(Record):
    """How fast what may fail is being used up: 1 uses up exactly what there is."""

    window_seconds: float
    samples: int
    rate: float | None
    """None without samples."""


@dataclass(frozen=True, slots=True)
class Objective(Record):
    """What the configuration promises."""

    KINDS = MappingProxyType({"burns": Burn})

    name: str
    """ttft_p95 and the like, admission_to_first_token_p95, or correctness."""
    target: float
    """Seconds; of correctness the floor."""
    share: float
    """Of the samples, which must keep it."""
    current: float | None
    met: bool
    burns: tuple[Burn, ...]
    """Shortest window first."""

    @property
    def is_latency(self) -> bool:
        return self.name != "correctness"


@dataclass(frozen=True, slots=True)
class Slo(Record):
    KINDS = MappingProxyType(
        {"ttft": Latency, "itl": Latency, "admission_to_first_token": Latency, "objectives": Objective}
    )

    specialist: str
    window_seconds: float
    """Over which the latencies and the preempted share are."""
    ttft: Latency | None
    itl: Latency | None
    admission_to_first_token: Latency | None
    pass_rate: float | None
    """Of the judged answers of the lane that serves; None without any."""
    judged: int
    floor: float | None
    """None: nothing follows from the rate."""
    correctness_window_seconds: float
    answered: int
    preempted_once: float | None
    """Of the answered requests, the share that gave way at least once."""
    objectives: tuple[Objective, ...]
    relative_error: float
    """Quantiles are at most this share of themselves away from the exact ones."""
    routers: int
    """Whose requests are in these figures."""

    def objective(self, name: str) -> Objective | None:
        return next((each for each in self.objectives if each.name == name), None)
