"""What would become of everybody if one more were let in."""

from bisect import insort
from collections.abc import Collection, Iterable
from math import inf
from typing import NamedTuple

from admission.forecast.books import Books
from admission.forecast.entry import Entry, rank_of
from admission.forecast.prices import Prices
from admission.forecast.promise import Bound
from admission.forecast.room import Room
from admission.forecast.under_way import UnderWay
from admission.forecast.verdict import Deadline
from admission.forecast.walk import NOBODY_ELSE, NOTHING_UNDER_WAY, Pace, Refill, Start, Walk

NOBODY: frozenset[str] = frozenset()
_STILL = 1e-4
"""Seconds that count as no delay."""


class Hurt(NamedTuple):
    entry: Entry
    late: float
    """Seconds past its deadline, the margin included."""


class Times(NamedTuple):
    """Seconds from now."""

    first: float
    """To the first token."""
    end: float


class Check(NamedTuple):
    own_late: float
    """Seconds the newcomer is past its deadline, the margin included; not positive where it is in time."""
    missed: Deadline
    """Of two deadlines, the one that is missed by more."""
    hurt: list[Hurt]
    """Whom it would push past theirs."""
    wait: float
    """Seconds until the newcomer begins."""
    ends: float
    due: float
    """When that is there by which its own deadline is judged."""
    quiet: Bound | None = None
    """What it may expect where nobody else comes; None where that was not looked for."""


class Trial:
    """All walks of one verdict: the same books, prices and moment. Deadlines are kept with a margin."""

    def __init__(
        self,
        books: Books,
        room: Room,
        prices: Prices,
        pace: Pace,
        margin: float,
        now: float,
        under_way: UnderWay | None = None,
    ) -> None:
        self.books = books
        self._room = room
        self._prices = prices
        self._pace = pace
        self.margin = margin
        self.now = now
        self._start = NOTHING_UNDER_WAY
        if under_way is not None:
            self._start = Start(under_way.seconds_left(prices, now), under_way.tokens)
        self.grace = self._cycle_seconds()
        self._before: dict[str, Times] | None = None
        self._timed = [entry for entry in books.entries if entry.timed]
        self.num_walks = 0

    def walk(
        self,
        extra: Entry | None = None,
        without: Collection[str] = NOBODY,
        refill: Refill = NOBODY_ELSE,
        until: Entry | None = None,
    ) -> Walk:
        running, line = self._seated()
        if without:
            running = [entry for entry in running if entry.booking.key not in without]
            line = [entry for entry in line if entry.booking.key not in without]
        if extra is not None:
            line = list(line)
            insort(line, extra, key=rank_of)
        self.num_walks += 1
        return Walk(self._room, self._prices, self._pace, refill).run(running, line, self._start, until)

    def _seated(self) -> tuple[list[Entry], list[Entry]]:
        """Who runs and who waits; who is in the step under way runs, even if the books do not say so yet."""
        running, line, begun = list(self.books.running), self.books.line, self._start.tokens
        if begun and line:
            running += [entry for entry in line if entry.booking.key in begun]
            line = [entry for entry in line if entry.booking.key not in begun]
        return running, line

    @property
    def timed(self) -> bool:
        """Whether anybody there has a deadline."""
        return bool(self._timed)

    def late_alone(self, entry: Entry, since: float = 0.0) -> bool:
        """Whether it could not be in time even if there were nobody else `since` seconds from now."""
        return self.slack_alone(entry, since) < 0

    def slack_alone(self, entry: Entry, since: float = 0.0) -> float:
        """Seconds it would be in time by if there were nobody else `since` seconds from now."""
        if not entry.timed:
            return inf
        return self.slack(entry, self._alone(entry, 1 + self.margin)) - since

    def has_time_for(self, entry: Entry, times: float) -> bool:
        """Whether it has more than so many times what it takes alone."""
        return self.slack(entry, self._alone(entry, times)) > 0

    def _alone(self, entry: Entry, stretch: float) -> Times:
        """To that by which its own deadlines are judged, if there were nobody else, and all took so much longer."""
        walk = Walk(self._room, self._prices, self._pace).run([], [entry])
        end = self._own_end(walk, entry, alone=True)
        return Times(entry.first_at * stretch, end * stretch)

    def _own_times(self, walk: Walk, entry: Entry) -> Times:
        """Of the newcomer, to that by which its deadlines are judged, the margin included.

        A lone one whose answer may well be shorter than it may be is in time when its first token is: refusing it
        would help nobody.
        """
        alone = not len(self.books)
        stretch = (1 + self.margin) / (1 - walk.refill.higher)
        grace = 0.0 if alone else self.grace
        end = self._own_end(walk, entry, alone=alone)
        return Times(entry.first_at * stretch + grace, end * stretch + grace)

    @staticmethod
    def _own_end(walk: Walk, entry: Entry, *, alone: bool) -> float:
        return entry.first_at if entry.unsure or (alone and not entry.booking.exact) else walk.long_finish(entry)

    def by_first_token(self, entry: Entry) -> bool:
        """Whether the deadline of its whole answer is judged by its first token."""
        return entry.unsure or (not len(self.books) and not entry.booking.exact)

    def slack(self, entry: Entry, times: Times) -> float:
        """What is left before its deadline then; of two, before the one that is nearer to being missed."""
        return min(self._left(entry.first_deadline, times.first), self._left(entry.booking.deadline, times.end))

    def _missed(self, entry: Entry, times: Times) -> Deadline:
        first = self._left(entry.first_deadline, times.first)
        return "first" if first < self._left(entry.booking.deadline, times.end) else "end"

    def time_left(self, entry: Entry, deadline: Deadline) -> float:
        return self._left(entry.first_deadline if deadline == "first" else entry.booking.deadline)

    def _left(self, deadline: float | None, at: float = 0.0) -> float:
        """Before the deadline, so many seconds from now."""
        return inf if deadline is None else deadline - self.now - at

    def hurt(self, walk: Walk, without: Collection[str] = NOBODY) -> list[Hurt]:
        """Whom the newcomer of this walk pushes past their deadlines.

        Not those who would surely be late without it. But where it is not sure, because they would be late or in time
        by less than the margin, they are not pushed any further.
        """
        late = [
            (entry, times)
            for entry in self._timed
            if entry.booking.key not in without and self.late_by(entry, times := _times(walk, entry)) > 0
        ]
        if not late:
            return []
        before = self._times_before()
        return [
            Hurt(entry, self.late_by(entry, times))
            for entry, times in late
            if self._is_pushed(entry, times, before[entry.booking.key])
        ]

    def late_by(self, entry: Entry, times: Times) -> float:
        """Seconds past its deadline, the margin included; not positive where it is in time."""
        late = self._past(entry.booking.deadline, times.end)
        return late if entry.first_deadline is None else max(late, self._past(entry.first_deadline, times.first))

    def _past(self, deadline: float | None, at: float) -> float:
        return -inf if deadline is None else self.now + at * (1 + self.margin) + self.grace - deadline

    def _is_pushed(self, entry: Entry, times: Times, before: Times) -> bool:
        return self._is_pushed_past(entry.booking.deadline, times.end, before.end) or self._is_pushed_past(
            entry.first_deadline, times.first, before.first
        )

    def _is_pushed_past(self, deadline: float | None, at: float, before: float) -> bool:
        if self._past(deadline, at) <= 0 or deadline is None:
            return False
        if self.now + before * (1 - self.margin) - self.grace > deadline:
            return False
        return self._past(deadline, before) <= 0 or at > before + _STILL

    def _cycle_seconds(self) -> float:
        """A chunk of prompt and the round behind it: what one turn more or less makes."""
        prices, rows = self._prices, max(1, len(self.books.running))
        chunk = prices.prefill_step + self._pace.chunk * prices.prefill_token
        return chunk + prices.decode_step + rows * prices.decode_token

    def _times_before(self) -> dict[str, Times]:
        """Of everybody, if nobody is let in."""
        if self._before is None:
            walk = self.walk()
            self._before = {entry.booking.key: _times(walk, entry) for entry in self.books.entries}
        return self._before

    def seconds_to_the_end(self, entries: Iterable[Entry]) -> float:
        """Until the last of these has ended, with a long answer, if nobody is let in."""
        return max((self._times_before()[entry.booking.key].end for entry in entries), default=0.0)

    def ends(self) -> list[float]:
        """Of everybody, with a long answer, if nobody is let in."""
        return [times.end for times in self._times_before().values()]

    def seconds_to_an_end(self) -> float:
        """Until the first of those who are there has ended, at a glance."""
        prices, rows = self._prices, max(1, len(self.books.running))
        a_round = prices.decode_step + rows * prices.decode_token
        return min(
            (each.prompt_left * prices.prefill_token + each.expected_left * a_round for each in self.books.entries),
            default=0.0,
        )

    def work(self, entry: Entry) -> float:
        """Seconds that are saved where it goes."""
        prices = self._prices
        return entry.prompt_left * prices.prefill_token + entry.expected_left * prices.decode_token

    def check(self, entry: Entry, without: Collection[str], refill: Refill) -> Check:
        """The newcomer's own deadline is judged with those to be expected; everybody else's with those who are there:
        what they were promised left room for others, and the newcomer is one of them."""
        without = frozenset(without)
        own_late = -inf
        missed: Deadline = "end"
        if entry.timed:
            own = self._own_times(self.walk(entry, without, refill, until=entry), entry)
            own_late, missed = -self.slack(entry, own), self._missed(entry, own)
            if own_late > 0 or not self.timed:
                return Check(own_late, missed, [], entry.begun_at, entry.finish_at, self._due(entry, missed))
        walk = self.walk(entry, without, until=None if self.timed else entry)
        hurt = self.hurt(walk, without)
        due = self._due(entry, missed)
        return Check(own_late, missed, hurt, entry.begun_at, entry.finish_at, due, bound_of(entry))

    def _due(self, entry: Entry, missed: Deadline) -> float:
        return entry.first_at if missed == "first" or self.by_first_token(entry) else entry.finish_at


def times_of(entry: Entry) -> Times:
    """From the walk that was taken last, with an answer as long as answers usually are."""
    return Times(entry.first_at, entry.finish_at)


def _times(walk: Walk, entry: Entry) -> Times:
    """With one of the longest answers."""
    return Times(entry.first_at, walk.long_finish(entry))


def bound_of(entry: Entry) -> Bound:
    """From the walk that was taken last."""
    tokens = entry.expected_left - 1
    pace = (entry.finish_at - entry.first_at) / tokens if tokens > 0 else 0.0
    return Bound(entry.begun_at, entry.first_at, pace)
