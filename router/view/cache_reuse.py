"""What share of the prompts' tokens replicas found in their caches: of late, and before that."""

from collections.abc import Container, Iterable
from dataclasses import dataclass

from octet.clock import Clock
from octet.v1 import specialist_pb2 as wire
from router.view.buckets import Buckets

RECENT_SECONDS = 300.0
USUAL_SECONDS = 3600.0
_STEPS = 20
"""That the recent time is cut into."""
_Counters = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Reuse:
    """Over one stretch of time."""

    prompt_tokens: int = 0
    hit_tokens: int = 0
    evicted_blocks: int = 0

    @property
    def share(self) -> float | None:
        """None without prompts."""
        return min(1.0, self.hit_tokens / self.prompt_tokens) if self.prompt_tokens > 0 else None


class CacheReuse:
    """Replicas count from their own start, for whichever router asks: what counts here is by how much their figures
    grow. Those of a replica that begins anew are smaller than before, and all of them are new. Belongs to the event
    loop."""

    def __init__(self, clock: Clock, recent: float = RECENT_SECONDS, usual: float = USUAL_SECONDS) -> None:
        """Seconds: the recent ones, and those before them that are usual."""
        self._clock = clock
        self._recent = recent
        self._usual = usual
        self._seen: dict[str, _Counters] = {}
        """By replica."""
        self._by_specialist: dict[str, Buckets] = {}

    def look(self, specialist: str, reports: Iterable[tuple[str, wire.LoadReport]]) -> None:
        """At the replicas of one specialist, by name."""
        now = self._clock.now()
        for replica, report in reports:
            told = (report.prompt_tokens, report.cache_hit_tokens, report.evicted_blocks)
            before = self._seen.get(replica)
            self._seen[replica] = told
            if before is None or told == before:
                continue
            grown = told if told[0] < before[0] else tuple(new - old for new, old in zip(told, before, strict=True))
            figures = self._of(specialist).at(now)
            for index, each in enumerate(grown):
                figures[index] += max(0, each)

    def recent(self, specialist: str) -> Reuse:
        now = self._clock.now()
        return self._sum(specialist, now - self._recent, now)

    def usual(self, specialist: str) -> Reuse:
        """Before the recent time."""
        until = self._clock.now() - self._recent
        return self._sum(specialist, until - self._usual, until)

    def forget_all_but(self, specialists: Container[str], replicas: Container[str]) -> None:
        """Those that are there no more."""
        for name in [name for name in self._by_specialist if name not in specialists]:
            del self._by_specialist[name]
        for name in [name for name in self._seen if name not in replicas]:
            del self._seen[name]

    def _sum(self, specialist: str, after: float, until: float) -> Reuse:
        buckets = self._by_specialist.get(specialist)
        return Reuse() if buckets is None else Reuse(*(round(each) for each in buckets.sums(after, until)))

    def _of(self, specialist: str) -> Buckets:
        found = self._by_specialist.get(specialist)
        if found is None:
            found = Buckets(3, self._recent + self._usual, self._recent / _STEPS)
            self._by_specialist[specialist] = found
        return found
