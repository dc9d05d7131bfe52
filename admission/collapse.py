"""Collapse of a lane: a sequential test on the newest judged answers, of which too many are bad in one way.

Each way to be bad is a *signal*: an answer is degenerate, or is cut at its length where answers with such a limit used
to stop. A signal is compared with its usual share, which the lane's own past or that of the lane before it shows. The
test looks at a span of answers after each judged answer, and at its newest part. `RecentAnswers` chooses the span so
that neither one prompt nor one tenant fills it. `false_alarm_bound` bounds how often the test is wrong.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt

from admission.budgets import Counts

SPAN = 20  # judged answers that the test looks at
DEGENERATE, CUT = "degenerate", "cut"
_FEWEST = 10  # bad answers that are needed at least
_CHANCE = 1e-6  # of so many bad answers in one look, if the lane is as usual
_SUSPECT_FEWEST, _SUSPECT_CHANCE = 5, 1e-4  # the same for a suspicion
_NEWEST_FEWEST, _NEWEST_CHANCE = 8, 1e-8  # the same for each look at the newest part of a span
_OTHERS_FEWEST = 4  # bad answers of the other tenants that are needed at least, in a newest part of their answers
_PROMPTS_SHARE = 0.75  # of the prompts of a lane with few: so many need bad answers
_MOST_BEFORE = 200  # answers before the newest SPAN, of which the share of bad ones is known
_FEWEST_BEFORE = 20
_SLOTS = 60  # parts of the window
_OTHERS_SLOTS = 0.1  # tenants that used the lane in so many of its slots count beside one that uses it more
_KNOWN = 50  # judged answers from which the usual share is estimated; with fewer it is unknown
_UNKNOWN_SHARE = 0.3
_LEAST_SHARE = 0.05
_SIGMAS = 3.0
_SHORTEST_LIMIT = 64  # tokens; an answer with a shorter limit is often cut
_TENANT_SHARE = SPAN // 2  # answers of one tenant in a span, if others have answers, too
_MOST_KEPT = 5 * SPAN  # answers
_MOST_AHEAD = 5  # seconds; an answer further in the future comes from a wrong clock


def cut_signal(limit: int) -> str:
    """Return the signal of answers with about this limit in tokens; empty for a limit so short that a cut is usual.
    Limits from one power of two to the next share a signal."""
    return f"{CUT}{1 << (limit.bit_length() - 1)}" if limit >= _SHORTEST_LIMIT else ""


def signal_kind(signal: str) -> str:
    """Return the kind of a signal. Signals of one kind are tested together."""
    return DEGENERATE if signal == DEGENERATE else CUT


def usual_share(past: Counts) -> float:
    """Return an upper bound on the share of bad answers in the past (Wilson's, at three sigma). With few answers, it is
    a share that only a collapse exceeds."""
    if past.total < _KNOWN:
        return _UNKNOWN_SHARE
    return max(_LEAST_SHARE, _upper_share(past))


def _upper_share(past: Counts) -> float:
    share, square, total = past.bad / past.total, _SIGMAS**2, past.total
    spread = _SIGMAS * sqrt(share * (1 - share) / total + square / (4 * total**2))
    return (share + square / (2 * total) + spread) / (1 + square / total)


def newest_share(before: Counts, past: Counts) -> float | None:
    """Return an upper bound on the share of bad answers in the newest part of a span, which has more answers to popular
    prompts than the whole. `before` counts all answers, with repetitions, and `past` those to new prompts. None if too
    few are known."""
    if before.total < _FEWEST_BEFORE:
        return None
    return max(_LEAST_SHARE, _upper_share(before), usual_share(past) if past.total >= _KNOWN else 0.0)


def usual_shares(past: Mapping[str, Counts], most: float = 1.0) -> dict[str, float]:
    """Return the usual share by signal; that of degenerate answers is at most `most`. A limit with an unknown past is
    left out, because the callers' limits decide how many answers are cut."""
    known = {signal: usual_share(counts) for signal, counts in past.items() if counts.total >= _KNOWN}
    return {**known, DEGENERATE: min(most, known.get(DEGENERATE, _UNKNOWN_SHARE))}


@lru_cache(4096)
def chance_of(bad: int, shares: tuple[float, ...]) -> float:
    """Return the probability that at least `bad` of independent answers are bad; `shares` has that of each."""
    chances = [1.0]  # by the number of bad answers
    for share in shares:
        chances = [
            good * (1 - share) + worse * share for good, worse in zip([*chances, 0.0], [0.0, *chances], strict=True)
        ]
    return min(1.0, sum(chances[max(0, bad) :]))


def is_collapse(bad: int, shares: Sequence[float], fewest: int = _FEWEST, chance: float = _CHANCE) -> bool:
    """Whether so many answers are bad that it cannot be chance. `shares` has the usual share of each answer."""
    if bad < fewest or bad <= sum(shares):
        return False
    return chance_of(bad, tuple(sorted(shares))) <= chance


def is_over(recent: Counts, share: float) -> bool:
    """Whether a whole span shows that a collapse has ended."""
    return recent.total >= SPAN and recent.bad <= max(share, _UNKNOWN_SHARE) * recent.total


def false_alarm_bound(answers: int, true_share: float, share: float) -> float:
    """Return an upper bound on the probability of an alarm within so many judged answers of a lane that did not
    collapse. Answers to different prompts are independent, each is bad with the probability `true_share`, and `share`
    was taken as usual. Answers to one prompt may depend on each other if the lane gets SPAN different prompts."""

    def chance_at(total: int, fewest: int, chance: float) -> float:
        looks = (bad for bad in range(total + 1) if is_collapse(bad, (share,) * total, fewest, chance))
        return chance_of(next(looks, total + 1), (true_share,) * total)

    newest = {total: chance_at(total, _NEWEST_FEWEST, _NEWEST_CHANCE) for total in range(_NEWEST_FEWEST, SPAN + 1)}
    chances = {total: chance_at(total, _FEWEST, _CHANCE) for total in range(1, SPAN + 1)}
    looks = {total: chances[total] + sum(each for size, each in newest.items() if size <= total) for total in chances}
    early = sum(chance for total, chance in looks.items() if total < min(SPAN, answers + 1))
    return min(1.0, early + max(0, answers - SPAN + 1) * looks[SPAN])


@dataclass(frozen=True, slots=True)
class SeenAnswer:
    """What one judged answer shows. Tenant and prompt are marks, which tell them apart without naming them."""

    at: int  # seconds
    tenant: str
    prompt: str
    signal: str
    bad: bool


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
        how = DEGENERATE if self.signal == DEGENERATE else "cut at their length"
        bad = f"{self.recent.bad} of the last {self.recent.total} judged answers are {how}{what}"
        return f"{bad}; up to {self.share:.1%} is usual"


def find_collapse(
    newest: "RecentAnswers",
    shares: Mapping[str, float],
    slots: "TenantSlots | None" = None,
    *,
    before: float | None = None,
    suspect: bool = False,
) -> Collapse | None:
    """Test the answers of one kind of signal. `shares` are the usual ones by signal; `before` is the usual share of all
    answers, None if it is not known. If several tenants use the lane, as `slots` has them, it has collapsed only if the
    newest answers without those of any one tenant are suspicious, too. With `suspect`, return whether they all are
    suspicious, which is only shown."""
    span = newest.span(shares)
    if suspect:
        return _find(span, shares, _SUSPECT_FEWEST, _SUSPECT_CHANCE)
    found = _find(span, shares, _FEWEST, _CHANCE)
    if found is None and newest.has_bad_prompts(shares):
        usual = shares if before is None else dict.fromkeys(shares, before)
        found = _find_newest(span, usual, _NEWEST_FEWEST, _NEWEST_CHANCE)
    if found is None or slots is None:
        return found
    ((worst, _),) = Counter(each.tenant for each in span if each.bad).most_common(1)
    if slots.has_others(worst):
        others = newest.without(worst, shares)
        if _find_newest(others, shares, _OTHERS_FEWEST, _SUSPECT_CHANCE) is None:
            return None
    return found


def _find_newest(
    span: Sequence[SeenAnswer], shares: Mapping[str, float], fewest: int, chance: float
) -> Collapse | None:
    """Test each newest part of the answers, newest first: earlier good ones must not hide what has changed."""
    sizes = range(fewest, len(span) + 1) if sum(each.bad for each in span) >= fewest else ()
    return next((found for size in sizes if (found := _find(span[:size], shares, fewest, chance))), None)


def _find(span: Sequence[SeenAnswer], shares: Mapping[str, float], fewest: int, chance: float) -> Collapse | None:
    expected = [shares[each.signal] for each in span]
    recent = count_answers(span)
    if not is_collapse(recent.bad, expected, fewest, chance):
        return None
    return Collapse(signal_kind(span[0].signal), recent, sum(expected) / len(expected))


def count_answers(span: Iterable[SeenAnswer]) -> Counts:
    counts = Counter(each.bad for each in span)
    return Counts(counts[False], counts[True])


class TenantSlots:
    """Which tenants got answers of a lane, by parts of the window. A tenant cannot push others out by asking more: they
    count while they used the lane in a share of its slots."""

    def __init__(self, window: float) -> None:
        self._seconds = max(1.0, window / _SLOTS)
        self._slots: dict[int, tuple[str, ...]] = {}  # at most two tenants of each, which is enough to find another one

    def add(self, at: int, tenant: str) -> None:
        slot = int(at / self._seconds)
        known = self._slots.get(slot, ())
        if len(known) < 2 and tenant not in known:
            self._slots[slot] = (*known, tenant)
            for old in [each for each in self._slots if each <= max(self._slots) - _SLOTS]:
                del self._slots[old]

    def merged(self, other: "TenantSlots") -> "TenantSlots":
        merged = TenantSlots(self._seconds * _SLOTS)
        merged._slots = {
            slot: (*self._slots.get(slot, ()), *other._slots.get(slot, ())) for slot in {*self._slots, *other._slots}
        }
        return merged

    def has_others(self, tenant: str) -> bool:
        num_others = sum(any(each != tenant for each in known) for known in self._slots.values())
        return num_others > 0 and num_others >= _OTHERS_SLOTS * len(self._slots)


class RecentAnswers:
    """The newest judged answers of one lane for one kind of signal, by all routers as far as they share them.

    They are ranked. The newest answer to each prompt ranks before any repetition, so that a prompt with a bad answer
    counts once, unless the lane gets few prompts. Then, _TENANT_SHARE answers of each tenant rank before its others. At
    last, newer answers rank before older ones. The first SPAN are tested. A router shares its answers from a bad one
    on, until SPAN in a row are good; at most SPAN a minute, because a router that judges more finds a collapse alone.
    """

    def __init__(self, window: float) -> None:
        """Answers are forgotten after `window` seconds."""
        self._window = window
        self._newest: list[SeenAnswer] = []
        self._ranked: list[SeenAnswer] = []
        self._num_good = SPAN  # answers since the last bad one
        self._shared = Counter[int]()  # answers by minute; only the last minute
        self._own: deque[bool] = deque(maxlen=SPAN + _MOST_BEFORE)  # whether they are bad, of this router's
        self.slots = TenantSlots(window)

    @property
    def is_clear(self) -> bool:
        """Whether the last SPAN answers were good."""
        return self._num_good >= SPAN

    @property
    def before(self) -> Counts:
        """The answers before the newest SPAN, with all repetitions, as far as this router has judged them."""
        bad = list(self._own)[:-SPAN]
        return Counts(bad.count(False), bad.count(True))

    def has_prompt(self, prompt: str) -> bool:
        return any(each.prompt == prompt for each in self._ranked)

    def add(self, answer: SeenAnswer) -> bool:
        """Add an answer that was judged by this router. Return whether to share it with other routers."""
        was_clear = self.is_clear
        self._insert(answer)
        minute = answer.at // 60
        self._shared = Counter({minute: self._shared[minute]})
        if (was_clear and not answer.bad) or self._shared[minute] >= SPAN:
            return False
        self._shared[minute] += 1
        return True

    def learn(self, answer: SeenAnswer) -> None:
        """Count an answer that was added as one of the usual ones, once it is not among the newest SPAN any more."""
        self._own.append(answer.bad)

    def put(self, answer: SeenAnswer, now: float) -> None:
        """Take an answer that a router has shared, perhaps this one."""
        is_known = any((each.at, each.prompt) == (answer.at, answer.prompt) for each in self._newest)
        if not is_known and answer.at <= now + _MOST_AHEAD:
            self._insert(answer)

    def span(self, signals: Mapping[str, float] | None = None) -> list[SeenAnswer]:
        """Return the answers to test; with `signals`, only of these."""
        return [each for each in self._ranked if signals is None or each.signal in signals][:SPAN]

    def without(self, tenant: str, signals: Mapping[str, float]) -> list[SeenAnswer]:
        """Return the newest answers to other tenants, the newest answer to each prompt before any repetition."""
        repetitions, others = Counter[str](), list[tuple[int, int, SeenAnswer]]()
        for place, each in enumerate(self._newest):
            if each.tenant != tenant and each.signal in signals:
                others.append((repetitions[each.prompt], place, each))
                repetitions[each.prompt] += 1
        return [each for *_, each in sorted(others, key=lambda ranked: ranked[:2])][:SPAN]

    def has_bad_prompts(self, signals: Mapping[str, float]) -> bool:
        """Whether so many different prompts of the span got bad answers that it is not a few prompts that always do."""
        num_bad = len({each.prompt for each in self.span(signals) if each.bad})
        num_prompts = len({each.prompt for each in self._newest})
        return num_bad >= min(_NEWEST_FEWEST, _PROMPTS_SHARE * num_prompts)

    def _insert(self, answer: SeenAnswer) -> None:
        self.slots.add(answer.at, answer.tenant)
        self._num_good = 0 if answer.bad else self._num_good + 1
        newest = sorted((answer, *self._newest), key=lambda each: -each.at)
        prompts, tenants = Counter[str](), Counter[tuple[int, str]]()
        ranks = list[tuple[int, int, int]]()
        for place, each in enumerate(newest):
            if each.at > newest[0].at - self._window:
                repetition = prompts[each.prompt]
                ranks.append((repetition, tenants[repetition, each.tenant] // _TENANT_SHARE, place))
                prompts[each.prompt] += 1
                tenants[repetition, each.tenant] += 1
        places = [place for *_, place in sorted(ranks)[:_MOST_KEPT]]
        self._ranked = [newest[place] for place in places]
        self._newest = [newest[place] for place in sorted(places)]
