"""Collapse of a lane: a sequential test on the newest judged answers, of which too many are bad in one way.

Each way to be bad is a *signal*: an answer is degenerate, or is cut at its length where answers with such a limit used
to stop. A signal is compared with its usual share, which the lane's own past or that of the lane before it shows. The
test looks at the last SPAN judged answers after each of them. `false_alarm_bound` bounds how often it is wrong.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, lgamma, log, log1p, sqrt

from admission.budgets import Counts

SPAN = 20  # judged answers that the test looks at
DEGENERATE = "degenerate"
_CUT = "cut"
_FEWEST = 10  # bad answers that are needed at least
_CHANCE = 1e-6  # of so many bad answers in one look, if the lane is as usual
_SUSPECT_FEWEST, _SUSPECT_CHANCE = 5, 1e-4  # the same for a suspicion, which is only shown
_KNOWN = 50  # judged answers from which the usual share is estimated; with fewer it is unknown
_UNKNOWN_SHARE = 0.3
_LEAST_SHARE = 0.05
_SIGMAS = 3.0
_SHORTEST_LIMIT = 64  # tokens; an answer with a shorter limit is often cut
_MOST_AHEAD = 3600  # seconds; a bucket further in the future comes from a wrong clock


def cut_signal(limit: int) -> str:
    """Return the signal of answers with about this limit in tokens; empty for a limit so short that a cut is usual.
    Limits from one power of two to the next share a signal."""
    return f"{_CUT}{1 << (limit.bit_length() - 1)}" if limit >= _SHORTEST_LIMIT else ""


def describe_signal(signal: str) -> str:
    return DEGENERATE if signal == DEGENERATE else "cut at their length"


def usual_share(past: Counts) -> float:
    """Return an upper bound on the share of bad answers in the past (Wilson's, at three sigma). With few answers, it is
    a share that only a collapse exceeds."""
    if past.total < _KNOWN:
        return _UNKNOWN_SHARE
    share, square, total = past.bad / past.total, _SIGMAS**2, past.total
    spread = _SIGMAS * sqrt(share * (1 - share) / total + square / (4 * total**2))
    return max(_LEAST_SHARE, (share + square / (2 * total) + spread) / (1 + square / total))


@lru_cache(4096)
def chance_of(bad: int, total: int, share: float) -> float:
    """Return the probability of at least `bad` bad ones of `total` answers, each bad with the probability `share`."""
    if bad <= 0 or share >= 1:
        return 1.0
    if share <= 0:
        return 0.0
    ways = lgamma(total + 1)
    logs = (
        ways - lgamma(n + 1) - lgamma(total - n + 1) + n * log(share) + (total - n) * log1p(-share)
        for n in range(bad, total + 1)
    )
    return min(1.0, sum(map(exp, logs)))


def is_collapse(recent: Counts, share: float, fewest: int = _FEWEST, chance: float = _CHANCE) -> bool:
    """Whether so many of the recent answers are bad that it cannot be chance. `share` is the usual share."""
    if recent.bad < fewest or recent.bad <= share * recent.total:
        return False
    return chance_of(recent.bad, recent.total, share) <= chance


def is_over(recent: Counts, share: float) -> bool:
    """Whether a whole span shows that a collapse has ended."""
    return recent.total >= SPAN and recent.bad <= max(share, _UNKNOWN_SHARE) * recent.total


def false_alarm_bound(answers: int, true_share: float, share: float) -> float:
    """Return an upper bound on the probability of an alarm within so many judged answers of a lane that did not
    collapse. Each is bad with the probability `true_share`, and `share` was taken as usual."""
    looks = {
        total: next((bad for bad in range(total + 1) if is_collapse(Counts(total - bad, bad), share)), total + 1)
        for total in range(_FEWEST, SPAN + 1)
    }
    early = sum(chance_of(bad, total, true_share) for total, bad in looks.items() if total < min(SPAN, answers + 1))
    return min(1.0, early + max(0, answers - SPAN + 1) * chance_of(looks[SPAN], SPAN, true_share))


@dataclass(frozen=True, slots=True)
class Collapse:
    """Why a lane counts as collapsed."""

    signal: str
    recent: Counts
    share: float  # the usual share of bad answers
    what: str = ""  # what the last bad answer was like

    def described(self, what: str) -> "Collapse":
        return replace(self, what=what)

    def __str__(self) -> str:
        what = f" ({self.what})" if self.what else ""
        bad = (
            f"{self.recent.bad} of the last {self.recent.total} judged answers are {describe_signal(self.signal)}{what}"
        )
        return f"{bad}; up to {self.share:.1%} is usual"


def find_collapse(
    recent: Mapping[str, Counts], past: Mapping[str, Counts], *, suspect: bool = False
) -> Collapse | None:
    """Test each signal of one lane, or with `suspect` whether one is suspicious. `past` is what is usual for the lane.
    Cut answers need a known past, because the callers' limits decide how many are cut."""
    limits = (_SUSPECT_FEWEST, _SUSPECT_CHANCE) if suspect else (_FEWEST, _CHANCE)
    for signal, counts in sorted(recent.items(), reverse=True):  # degenerate answers first: they say most
        usual = past.get(signal, Counts())
        if signal != DEGENERATE and usual.total < _KNOWN:
            continue
        if is_collapse(counts, share := usual_share(usual), *limits):
            return Collapse(signal, counts, share)
    return None


class RecentAnswers:
    """The newest judged answers of one lane for one signal. Own answers are known in order, those of other routers by
    second. Shared buckets hold answers only from a bad one on, until a whole span is good again."""

    def __init__(self) -> None:
        self._own: deque[bool] = deque(maxlen=SPAN)
        self._own_at = 0
        self._buckets: dict[int, Counts] = {}  # by second

    def add(self, now: float, *, bad: bool) -> bool:
        """Add an answer that was judged by this router. Return whether it is to be shared with other routers."""
        self._own_at = int(now)
        self._own.append(bad)
        if not self.counts(now).bad:
            self._buckets.clear()
            return False
        self._put(self._own_at, self._buckets.get(self._own_at, Counts()) + Counts(int(not bad), int(bad)), now)
        return True

    def put(self, start: int, counts: Counts, now: float) -> None:
        """Take the sum of all routers' answers in the second that begins at `start`."""
        self._put(start, counts, now)

    def counts(self, now: float) -> Counts:
        """Return the counts of the last SPAN answers: those of this router, or of all routers if others judged later or
        found more that are bad."""
        own = Counts(len(self._own) - sum(self._own), sum(self._own))
        if not self._buckets:
            return own
        newest = dict(self._newest(now))
        shared = sum(newest.values(), Counts())
        has_later = any(start > self._own_at for start in newest)
        return shared if has_later or shared.bad > own.bad else own

    def _newest(self, now: float) -> Iterator[tuple[int, Counts]]:
        total = 0
        for start in sorted((each for each in self._buckets if each <= now + _MOST_AHEAD), reverse=True):
            if total >= SPAN:
                return
            total += self._buckets[start].total
            yield start, self._buckets[start]

    def _put(self, start: int, counts: Counts, now: float) -> None:
        self._buckets[start] = counts
        self._buckets = dict(self._newest(now))
