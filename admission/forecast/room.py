"""How much a replica holds: what does not change while it lives."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Room:
    max_running: int
    max_waiting: int
    num_blocks: int
    block_size: int
    headroom: int = 0
    """Blocks an admission leaves free once something runs."""
    max_step_tokens: int = 512
    """Prompt tokens in a step while nobody decodes."""
    lone_chunks: int | None = None
    """Chunks in such a step at most; None for as many as there is room for."""
    age_bound: int = 8
    """Steps that one adapter stack goes on while another waits."""

    @property
    def total(self) -> int:
        return self.max_running + self.max_waiting

    @property
    def num_slots(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def entry_slots(self) -> int:
        """Slots that may be in use when somebody has entered."""
        return (self.num_blocks - self.headroom) * self.block_size
