"""What is known of one specialist in one slice of time. Everything in it is a sum."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from octet.telemetry.sketch import Sketch

Key = tuple[str, float]
"""A promise by its name and target."""
Counts = tuple[int, int]
"""Samples, and those that broke it."""


@dataclass(slots=True)
class Tally:
    answered: int = 0
    preempted: int = 0
    counts: dict[Key, Counts] = field(default_factory=dict)

    def merge(self, other: "Tally") -> None:
        self.answered += other.answered
        self.preempted += other.preempted
        self.count(other.counts)

    def count(self, counts: Mapping[Key, Counts]) -> None:
        for key, (samples, breached) in counts.items():
            had = self.counts.get(key, (0, 0))
            self.counts[key] = (had[0] + samples, had[1] + breached)


@dataclass(slots=True)
class Slice:
    ttft: Sketch = field(default_factory=Sketch)
    itl: Sketch = field(default_factory=Sketch)
    admission: Sketch = field(default_factory=Sketch)
    """From there to the first token."""
    tally: Tally = field(default_factory=Tally)

    def merge(self, other: "Slice") -> None:
        self.ttft.merge(other.ttft)
        self.itl.merge(other.itl)
        self.admission.merge(other.admission)
        self.tally.merge(other.tally)
