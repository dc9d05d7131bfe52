"""How fast the replica really is, from the steps it took."""

from typing import NamedTuple

from octet.clock import Clock
from specialist.events import Admitted
from specialist.step import Step


class Rates(NamedTuple):
    """A second; None until measured."""

    prefill: float | None
    decode: float | None
    drain: float | None


class Rate:
    """A ratio in which the past fades: each new sample leaves `keep` of what was there."""

    def __init__(self, keep: float = 0.9) -> None:
        self._keep = keep
        self._amount = 0.0
        self._seconds = 0.0

    def add(self, amount: float, seconds: float) -> None:
        self._amount = self._amount * self._keep + amount
        self._seconds = self._seconds * self._keep + seconds

    @property
    def value(self) -> float | None:
        return self._amount / self._seconds if self._seconds > 0 else None


class Meter:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._prefill, self._decode, self._drain = Rate(), Rate(), Rate()
        self._busy_since: float | None = None
        self.preempted_at: float | None = None
        self.times_preempted = 0
        self.prompt_tokens = 0
        self.cache_hit_tokens = 0
        """Of the prompt tokens."""

    def rates(self) -> Rates:
        return Rates(self._prefill.value, self._decode.value, self._drain.value)

    def step(self, step: Step, num_emitted: int, seconds: float) -> None:
        """A step was committed. What failed does not count as work, but its time was spent."""
        if self._busy_since is None:
            self._busy_since = step.started_at
        if step.mode == "prefill":
            self._prefill.add(_num_committed(step), seconds)
        else:
            self._decode.add(num_emitted, seconds)

    def admitted(self, event: Admitted) -> None:
        """Who comes back after giving way asks for nothing new."""
        if not event.times_preempted:
            self.prompt_tokens += event.num_tokens
            self.cache_hit_tokens += event.num_hit_tokens

    def preempted(self) -> None:
        self.times_preempted += 1
        self.preempted_at = self._clock.now()

    def finished(self) -> None:
        """A request ended. Only the time in which the replica was busy tells how fast it drains."""
        now = self._clock.now()
        if self._busy_since is not None:
            self._drain.add(1, now - self._busy_since)
            self._busy_since = now

    def idle(self) -> None:
        self._busy_since = None


def _num_committed(step: Step) -> int:
    """Prompt tokens that are in the cache for good, or led to an answer that has ended meanwhile."""
    return sum(
        len(row.tokens)
        for row in step.rows
        if row.sequence.num_computed >= row.stop or row.sequence.finish_reason in ("stop", "length")
    )
