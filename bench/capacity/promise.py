"""Whether a specialist kept what its configuration promises."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from bench.measure import percentile, summary
from bench.record import Record
from octet.config.ensemble import SloTargets


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one request; times in seconds."""

    specialist: str
    ttft: float | None
    """None: no token ever came."""
    gaps: tuple[float, ...]
    """Between its tokens."""
    refused: bool
    failed: bool
    from_admission: float | None
    """To the first token, from when a replica took it."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one specialist, over a whole trace."""

    specialist: str
    replicas: int
    requests: int
    refused: int
    failed: int
    ttft: tuple[float, float, float]
    """p50, p95, p99 of those that were answered."""
    itl: tuple[float, float, float]
    busy: float
    """Share of the time that its engines computed, on average."""
    misses: tuple[str, ...]
    """What was promised and not kept, a line each."""
    is_promising: bool = True
    """Whether its configuration promises anything."""

    @property
    def is_kept(self) -> bool:
        return not self.misses

    @property
    def words(self) -> str:
        return "; ".join(self.misses) or ("kept" if self.is_promising else "promises nothing")

    def records(self) -> list[Record]:
        """Of one run: no spread."""
        counts = (
            ("replicas", self.replicas),
            ("requests", self.requests),
            ("refused", self.refused),
            ("failed", self.failed),
        )
        times = (
            ("TTFT p50", self.ttft[0]),
            ("TTFT p95", self.ttft[1]),
            ("TTFT p99", self.ttft[2]),
            ("ITL p95", self.itl[1]),
        )
        found = [
            *((what, "", float(count)) for what, count in counts),
            *((what, "ms", 1000 * seconds) for what, seconds in times),
            ("engines busy", "%", 100 * self.busy),
        ]
        return [summary([value], "simulate", self.specialist, what, unit, "octet") for what, unit, value in found]


_NONE = (0.0, 0.0, 0.0)


def judged(
    specialist: str, replicas: int, answers: Sequence[Answer], targets: SloTargets, busy: float, most_refused: float
) -> Figures:
    ttfts = [answer.ttft for answer in answers if answer.ttft is not None]
    waits = [answer.from_admission for answer in answers if answer.from_admission is not None]
    gaps = [gap for answer in answers for gap in answer.gaps]
    refused, failed = sum(answer.refused for answer in answers), sum(answer.failed for answer in answers)
    seen = {"ttft": ttfts, "itl": gaps, "admission_to_first_token": waits}
    misses = [*_missed(seen, targets), *_turned_away(refused + failed, len(answers), most_refused)]
    return Figures(
        specialist,
        replicas,
        len(answers),
        refused,
        failed,
        _spread(ttfts),
        _spread(gaps),
        busy,
        tuple(misses),
        any(_promises(targets)),
    )


def _promises(targets: SloTargets) -> list[bool]:
    return [getattr(targets, field.name) is not None for field in fields(targets)]


def _missed(seen: dict[str, list[float]], targets: SloTargets) -> list[str]:
    misses = []
    for field in fields(targets):
        promised: float | None = getattr(targets, field.name)
        what, _, percent = field.name.rpartition("_p")
        if promised is None or not seen[what]:
            continue
        found = percentile(seen[what], int(percent))
        if found > promised:
            misses.append(f"{field.name} {found:.3g} s, promised {promised:.3g} s")
    return misses


def _turned_away(count: int, of: int, most: float) -> list[str]:
    if of and count > most * of:
        return [f"{100 * count / of:.1f} % not answered, allowed {100 * most:.1f} %"]
    return []


def _spread(samples: Sequence[float]) -> tuple[float, float, float]:
    return (percentile(samples, 50), percentile(samples, 95), percentile(samples, 99)) if samples else _NONE
