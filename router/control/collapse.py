"""Watches the newest judged answers of every lane for a collapse. Routers share what they saw through the store."""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from operator import attrgetter

from admission.budgets import Counts
from admission.collapse import (
    CUT,
    DEGENERATE,
    Collapse,
    RecentAnswers,
    SeenAnswer,
    count_answers,
    find_collapse,
    newest_share,
    signal_kind,
    usual_shares,
)
from router.control.windows import OutcomeWindows
from router.store.rows import CountBucket
from router.store.store import Store

SIGNAL = "signal"  # judged answers by lane and signal: `bad` counts those that are, for example, degenerate
RECENT = "recent"  # the newest of them by lane, signal, tenant and prompt, while a lane has bad ones
_KEY_PARTS = 6  # of a RECENT key; the first three are the lane's id
_MARK = 8  # characters that tell tenants and prompts apart


class CollapseMonitor:
    def __init__(self, store: Store, span: float) -> None:
        self._store = store
        self._past = OutcomeWindows(store, span, SIGNAL)  # by lane id and signal
        self._recent: dict[str, dict[str, RecentAnswers]] = {}  # by lane id and kind of signal
        self._what: dict[str, str] = {}  # by lane id: what its last degenerate answer was like

    def add(
        self,
        lane_id: str,
        tenant: str,
        question: str,
        signals: Mapping[str, bool],
        what: str,
        now: float,
        *,
        acts_on: Iterable[str] = (DEGENERATE, CUT),
    ) -> None:
        """Count a judged answer. `signals` tells for each signal whether the answer is bad. Other routers get only
        signals of the kinds in `acts_on`."""
        if what:
            self._what[lane_id] = what
        for signal, bad in signals.items():
            kind = signal_kind(signal)
            answer = SeenAnswer(int(now), _mark(tenant), _mark(question), signal, bad)
            recent = self._lane(lane_id)[kind]
            is_repeated = recent.has_prompt(answer.prompt)
            must_share = recent.add(answer)
            if not (bad and kind == DEGENERATE and self._is_odd(lane_id, now)):
                recent.learn(answer)
                if not (is_repeated or _is_alone(answer, recent.span())):
                    self._past.add(lane_id, signal, now, passed=not bad)
            if must_share and kind in acts_on:
                key = "|".join((lane_id, signal, answer.tenant, answer.prompt))
                self._store.count(CountBucket(RECENT, key, answer.at, int(not bad), int(bad)))

    def put(self, buckets: Iterable[CountBucket], now: float) -> None:
        """Take the sums of all routers from the store."""
        for bucket in sorted(buckets, key=attrgetter("start")):
            if bucket.series == SIGNAL:
                self._past.put((bucket,))
            elif bucket.series == RECENT and len(parts := bucket.key.split("|")) == _KEY_PARTS:
                *lane, signal, tenant, prompt = parts
                answer = SeenAnswer(bucket.start, tenant, prompt, signal, bucket.bad > 0)
                self._lane("|".join(lane))[signal_kind(signal)].put(answer, now)

    def recent(self, lane_id: str) -> Counts:
        """Return how many of the lane's newest answers are degenerate."""
        return count_answers(self._recent[lane_id][DEGENERATE].span()) if lane_id in self._recent else Counts()

    def is_clear(self, lane_id: str) -> bool:
        """Whether none of the newest answers is degenerate."""
        return lane_id not in self._recent or self._recent[lane_id][DEGENERATE].is_clear

    def find(
        self, lane_id: str, measure: str, now: float, *, most: float = 1.0, suspect: bool = False
    ) -> Collapse | None:
        """Return why the lane has collapsed, or with `suspect` is suspicious; None if it is not. `measure` is the lane
        whose past is usual: with the lane itself, the newest answers do not count as past. `most` limits the share of
        degenerate answers that is taken as usual."""
        if lane_id not in self._recent:
            return None
        recent = self._recent[lane_id]
        usual = self._recent.get(measure, recent)
        shares, before = self._usual(lane_id, measure, now, most)
        for kind in (DEGENERATE, CUT):  # degenerate answers first: they say most
            slots = recent[kind].slots.merged(usual[kind].slots)
            found = find_collapse(recent[kind], shares, slots, before=before[kind], suspect=suspect)
            if found is not None:
                return found.described(self._what.get(lane_id, "")) if kind == DEGENERATE else found
        return None

    def reset(self, span: float, buckets: Iterable[CountBucket], now: float) -> None:
        self._past.reset(span, ())
        self._recent.clear()
        self.put(buckets, now)

    def tidy(self, now: float) -> None:
        """Forget lanes without judged answers in the window."""
        self._past.tidy(now)
        for lane_id in list(self._recent):
            if not self._past.counts(lane_id, now).total:
                del self._recent[lane_id]
                self._what.pop(lane_id, None)

    def _usual(
        self, lane_id: str, measure: str, now: float, most: float = 1.0
    ) -> tuple[dict[str, float], dict[str, float | None]]:
        """Return the usual shares of bad answers by signal, and by kind those in the newest part of a span."""
        past, recent = self._past.counts_by_kind(measure, now), self._recent[lane_id]
        if measure == lane_id:
            newest = [each for answers in recent.values() for each in answers.span()]
            past = {signal: _without(counts, signal, newest) for signal, counts in past.items()}
        before = self._recent.get(measure, recent)[DEGENERATE].before
        share = newest_share(before, past.get(DEGENERATE, Counts()))
        return usual_shares(past, most), {DEGENERATE: None if share is None else min(most, share), CUT: None}

    def _is_odd(self, lane_id: str, now: float) -> bool:
        """Whether the newest degenerate answers look like a collapse, perhaps of what one tenant gets: they must not
        become usual."""
        shares, before = self._usual(lane_id, lane_id, now)
        return find_collapse(self._recent[lane_id][DEGENERATE], shares, before=before[DEGENERATE]) is not None

    def _lane(self, lane_id: str) -> dict[str, RecentAnswers]:
        if lane_id not in self._recent:
            self._recent[lane_id] = {kind: RecentAnswers(self._past.span) for kind in (DEGENERATE, CUT)}
        return self._recent[lane_id]


def _mark(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:_MARK] if text else ""


def _is_alone(answer: SeenAnswer, span: Iterable[SeenAnswer]) -> bool:
    """Whether the answer is bad and other tenants got answers, none of which is: it does not show what is usual."""
    others = [each.bad for each in span if each.tenant != answer.tenant]
    return answer.bad and bool(others) and not any(others)


def _without(past: Counts, signal: str, newest: Iterable[SeenAnswer]) -> Counts:
    recent = count_answers(each for each in newest if each.signal == signal)
    return Counts(max(0, past.good - recent.good), max(0, past.bad - recent.bad))
