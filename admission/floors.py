"""Floors: the pass rates below which a specialist is demoted. They are configured, or learned from a lane's answers.

Verifiers differ in strictness, so each has its own floor, and answers are counted by the verifier that judged them. If
callers ask for other tasks than before, other verifiers judge more of the answers, but no pass rate is compared with
the floor of another verifier. A lane is as good as its worst verifier says.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from math import exp, inf, log, sqrt
from typing import Any, Literal

from admission.budgets import Counts, restore_record
from octet.config.ensemble import CorrectnessConfig

FloorSetting = float | Literal["auto", "none"]
MOST_LEARNED = 0.9  # no learned floor is higher, so a lane that always passed may fail one answer in ten
_SIGMAS = 1.645  # one-sided 95 %: the learned pass rate is at least the lower bound
_DOUBT = 0.001  # a lane is below a learned floor if its counts are less likely than this at the floor
_FEWEST = 10  # judged answers by one verifier that are needed to compare lanes by it


@dataclass(frozen=True, slots=True)
class Tally(Counts):
    """Judged answers of one lane, together and by the verifier that judged them."""

    by_verifier: Mapping[str, Counts] = field(default_factory=dict)


def tally_of(by_verifier: Mapping[str, Counts]) -> Tally:
    total = sum(by_verifier.values(), Counts())
    return Tally(total.good, total.bad, by_verifier)


def _strata(counts: Counts) -> Mapping[str, Counts]:
    """Return the counts by verifier; "" stands for an unknown one."""
    return counts.by_verifier if isinstance(counts, Tally) else {"": counts} if counts.total else {}


def chance_of_fewer(counts: Counts, rate: float) -> float:
    """Return an upper bound (Chernoff) on the probability of so few passes if each answer passes with this rate."""
    if counts.rate is None or counts.rate >= rate:
        return 1.0
    exponent = 0.0
    for count, share in ((counts.good, rate), (counts.bad, 1 - rate)):
        if count:
            exponent += count * log(count / counts.total / share) if share > 0 else inf
    return exp(-exponent)


def learned_rate(counts: Counts, margin: float) -> float:
    """Return the floor to learn from these answers: `margin` below the lower bound (Wilson's) of the pass rate, but at
    least half the bound, so that a low rate has a floor too. A lane that never passed has the floor 0."""
    if counts.rate is None or not counts.good:
        return 0.0
    share, square, total = counts.rate, _SIGMAS**2, counts.total
    spread = _SIGMAS * sqrt(share * (1 - share) / total + square / (4 * total**2))
    bound = max(0.0, (share + square / (2 * total) - spread) / (1 + square / total))
    return min(MOST_LEARNED, max(bound - margin, bound / 2))


@dataclass(frozen=True, slots=True)
class LearnedFloor:
    rate: float
    good: int  # the answers from which it was learned
    total: int
    lane: int  # the number of the lane that gave them
    at: float  # Unix seconds


@dataclass(frozen=True, slots=True)
class FloorBook:
    """What a specialist has learned. A floor stays as it is, whichever lane serves, until an operator promotes another
    lane, which then becomes trusted, or has the floors learned again."""

    learned: Mapping[str, LearnedFloor] = field(default_factory=dict)  # by verifier
    since: float = 0.0  # answers judged earlier do not count for learning; Unix seconds

    def learn(
        self, tally: Tally, lane: int, rules: CorrectnessConfig, now: float, *, renews: bool = False
    ) -> "FloorBook":
        """Return the book with a floor for each verifier that has judged enough answers of the trusted serving lane and
        has none. With `renews`, floors that other lanes gave are replaced."""
        found = dict(self.learned)
        for verifier, counts in sorted(tally.by_verifier.items()):
            known = found.get(verifier)
            if counts.total >= rules.learn_samples and (known is None or (renews and known.lane != lane)):
                rate = learned_rate(counts, rules.floor_margin)
                found[verifier] = LearnedFloor(rate, counts.good, counts.total, lane, now)
        return self if found == self.learned else replace(self, learned=found)

    def to_body(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> "FloorBook":
        """Raises ValueError, KeyError, TypeError or AttributeError for an invalid body."""
        learned = {str(name): restore_record(LearnedFloor, each, "a floor") for name, each in body["learned"].items()}
        for name, each in learned.items():
            numbers = (each.rate, each.good, each.total, each.lane, each.at)
            if not all(isinstance(number, int | float) for number in numbers) or not 0 <= each.rate <= MOST_LEARNED:
                raise ValueError(f"invalid floor of {name!r}: {each}")
        return cls(learned, float(body["since"]))


@dataclass(frozen=True, slots=True)
class Floor:
    rate: float
    is_learned: bool = False

    def __str__(self) -> str:
        return f"{self.rate:.1%}" + (" (learned)" if self.is_learned else "")

    def is_breached(self, counts: Counts) -> bool:
        """Whether the counts are below the floor; if it is learned, beyond doubt, because few answers prove little."""
        if counts.rate is None or counts.rate >= self.rate:
            return False
        return not self.is_learned or chance_of_fewer(counts, self.rate) < _DOUBT


Floors = Mapping[str, Floor]  # by verifier


def floors_in_force(setting: FloorSetting, own: str, book: FloorBook) -> Floors:
    """Return the floors of a specialist. A number pins the floor of its `own` verifier; the others are learned."""
    if setting == "none":
        return {}
    learned = {verifier: Floor(each.rate, is_learned=True) for verifier, each in book.learned.items()}
    return learned if isinstance(setting, str) else {**learned, own: Floor(setting)}


@dataclass(frozen=True, slots=True)
class Standing:
    """How a lane stands: the counts and the floor of the verifier that decides."""

    counts: Counts
    verifier: str
    floor: Floor | None
    by_verifier: Mapping[str, Counts]  # all counts of the lane

    def is_below(self, *, is_demoted: bool) -> bool:
        """Whether the lane is below the floor; if it is not demoted and the floor is learned, beyond doubt."""
        rate, floor = self.counts.rate, self.floor
        if rate is None or floor is None:
            return False
        return rate < floor.rate if is_demoted else floor.is_breached(self.counts)


def find_standing(
    floors: Floors, tally: Tally, min_samples: int, own: str, below_by: str = "", demoted_by: str = ""
) -> Standing:
    """Return the standing by the verifier that says the worst of the lane, of those with a floor and enough answers. If
    none has enough, the one with the most answers; without a floor, all answers together. `below_by`, by which the lane
    is below its floor already, decides as long as it is. `demoted_by`, by which the lane was demoted, decides unless it
    is below another floor: no other verifier shows that it has recovered."""
    known = tally.by_verifier
    found = {name: Standing(known.get(name, Counts()), name, floor, known) for name, floor in floors.items()}
    if not found:
        return Standing(Counts(tally.good, tally.bad), own, None, known)
    enough = {name: each for name, each in found.items() if each.counts.total >= min_samples}
    worst = min(enough.values(), key=_severity, default=None)
    if worst is not None and worst.is_below(is_demoted=bool(demoted_by)):
        before = enough.get(below_by, worst)
        return before if before.is_below(is_demoted=bool(demoted_by)) else worst
    if demoted_by in found:
        return found[demoted_by]
    return worst or max(found.values(), key=lambda each: (each.counts.total, each.verifier == own))


def _severity(standing: Standing) -> tuple[bool, float]:
    rate, floor = standing.counts.rate, standing.floor
    if rate is None or floor is None:
        return True, inf
    return not floor.is_breached(standing.counts), rate - floor.rate


def floor_at(floors: Floors, counts: Counts) -> float | None:
    """Return the floors' mean, weighted by how many of the counted answers each verifier judged. Answers of a verifier
    without a floor are as good as they have to be. None if no answer has a floor."""
    known = {name: floors[name].rate for name in _strata(counts) if name in floors}
    return _weighted(known, counts) if known else None


def expected_rate(reference: Counts, counts: Counts) -> float | None:
    """Return the pass rate of the reference lane if its answers were judged by the verifiers that judged the counted
    ones, in the same proportions. None if no verifier has judged enough answers of both."""
    known = {name: each.rate for name, each in _strata(reference).items() if each.total >= _FEWEST}
    shared = {name: rate for name, rate in known.items() if rate is not None and name in _strata(counts)}
    return _weighted(shared, counts) if shared else None


def _weighted(rates: Mapping[str, float], counts: Counts) -> float:
    parts = _strata(counts).items()
    return sum(rates[name] * each.total if name in rates else each.good for name, each in parts) / counts.total
