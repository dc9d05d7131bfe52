"""Results of a bench with peers: figures, notes, and the peers that had to be left out."""

from collections.abc import Callable
from dataclasses import dataclass, field

from simulation.results import BenchRecord

Say = Callable[[str], None]


@dataclass(slots=True)
class Findings:
    say: Say
    records: list[BenchRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # stored in the result, such as the settings of each system
    failures: list[str] = field(default_factory=list)  # already printed

    def fail(self, why: str) -> None:
        self.say(why)
        self.failures.append(why)
        self.notes.append(f"left out: {why}")
