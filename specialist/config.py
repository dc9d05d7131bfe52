"""The scheduler's settings, fixed for the life of a replica."""

from dataclasses import dataclass

from octet.identity import Lane


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    lane: Lane
    """The bare lane of the replica: specialist and model revision."""
    kv_dtype: str = "float32"
    max_running: int = 32
    max_step_tokens: int = 2048
    """Prompt tokens in a step while nobody decodes."""
    watermark: float = 0.05
    """Share of the pool that an admission leaves free once something runs, for the runners to grow into."""
    age_bound: int = 8
    """Steps of its kind that a prompt or an adapter may be passed over."""

    def __post_init__(self) -> None:
        if self.lane.adapters:
            raise ValueError("lane must be bare: requests bring their adapters")
        for name in ("max_running", "max_step_tokens", "age_bound"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value}")
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark must be in [0, 1), got {self.watermark}")
