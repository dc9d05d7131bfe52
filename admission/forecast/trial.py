"""What would become of everybody if one more were let in."""

from bisect import insort
from collections.abc import Collection
from math import inf
from typing import NamedTuple

from admission.forecast.books import Books
from admission.forecast.entry import Entry, rank_of
from admission.forecast.prices import Prices
from admission.forecast.promise import Bound
from admission.forecast.room import Room
from admission.forecast.under_way import UnderWay
from admission.forecast.walk import NOBODY_ELSE, NOTHING_UNDER_WAY, Later, Pace, Refill, Start, Walk

NOBODY: frozenset[str] = frozenset()
_STILL = 1e-4
"""Seconds that count as no delay."""


class Hurt(NamedTuple):
    entry: Entry
    late: float
    """Seconds past its deadline, the margin included."""


class Check(NamedTuple):
    own_late: float
    """Seconds the newcomer ends past its deadline, the margin included; not positive where it is in time."""
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
        self._margin = margin
        self.now = now
        self._start = NOTHING_UNDER_WAY
        if under_way is not None:
            self._start = Start(under_way.seconds_left(prices, now), under_way.tokens)
        self._grace = self._cycle_seconds()
        self._before: dict[str, float] | None = None
        self.timed = any(entry.booking.deadline is not None for entry in books.entries)
        self.num_walks = 0

    def walk(
        self,
        extra: Entry | None = None,
        without: Collection[str] = NOBODY,
        refill: Refill = NOBODY_ELSE,
        later: Later | None = None,
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
        return Walk(self._room, self._prices, self._pace, refill).run(running, line, later, self._start, until)

    def _seated(self) -> tuple[list[Entry], list[Entry]]:
        """Who runs and who waits; who is in the step under way runs, even if the books do not say so yet."""
        running, line, begun = list(self.books.running), self.books.line, self._start.tokens
        if begun and line:
            running += [entry for entry in line if entry.booking.key in begun]
            line = [entry for entry in line if entry.booking.key not in begun]
        return running, line

    def late_alone(self, entry: Entry, since: float = 0.0) -> bool:
        """Whether it could not be in time even if there were nobody else `since` seconds from now."""
        return self.slack_alone(entry, since) < 0

    def slack_alone(self, entry: Entry, since: float = 0.0) -> float:
        """Seconds it would be in time by if there were nobody else `since` seconds from now."""
        if entry.booking.deadline is None:
            return inf
        return self.time_left(entry) - since - self.seconds_alone(entry) * (1 + self._margin)

    def seconds_alone(self, entry: Entry) -> float:
        """To that by which its own deadline is judged, if there were nobody else."""
        walk = Walk(self._room, self._prices, self._pace).run([], [entry])
        return self._own_finish(walk, entry, alone=True)

    def own_late(self, walk: Walk, entry: Entry, since: float = 0.0) -> float:
        """Seconds the newcomer ends past its deadline, where it comes `since` seconds from now.

        A lone one whose answer may well be shorter than it may be is in time when its first token is: refusing it
        would help nobody.
        """
        alone = not len(self.books)
        takes = (self._own_finish(walk, entry, alone=alone) - since) / (1 - walk.refill.higher)
        return takes * (1 + self._margin) + (0.0 if alone else self._grace) - self.time_left(entry)

    @staticmethod
    def _own_finish(walk: Walk, entry: Entry, *, alone: bool) -> float:
        return entry.first_at if entry.unsure or (alone and not entry.booking.exact) else walk.long_finish(entry)

    def by_first_token(self, entry: Entry) -> bool:
        """Whether its own deadline is judged by its first token."""
        return entry.unsure or (not len(self.books) and not entry.booking.exact)

    def time_left(self, entry: Entry) -> float:
        return inf if entry.booking.deadline is None else entry.booking.deadline - self.now

    def hurt(self, walk: Walk, without: Collection[str] = NOBODY) -> list[Hurt]:
        """Whom the newcomer of this walk pushes past their deadlines.

        Not those who would surely be late without it. But where it is not sure, because they would be late or in time
        by less than the margin, they are not pushed any further.
        """
        if not self.timed:
            return []
        late = [
            (entry, finish)
            for entry in self.books.entries
            if entry.booking.deadline is not None
            and entry.booking.key not in without
            and self.late_by(entry, finish := walk.long_finish(entry)) > 0
        ]
        if not late:
            return []
        before = self._finishes_before()
        return [
            Hurt(entry, self.late_by(entry, finish))
            for entry, finish in late
            if self._is_pushed(entry, finish, before[entry.booking.key])
        ]

    def late_by(self, entry: Entry, finish: float) -> float:
        """Seconds past its deadline, the margin included; not positive where it is in time."""
        deadline = entry.booking.deadline
        return -inf if deadline is None else self.now + finish * (1 + self._margin) + self._grace - deadline

    def _is_pushed(self, entry: Entry, finish: float, before: float) -> bool:
        deadline = entry.booking.deadline
        if deadline is None or self.now + before * (1 - self._margin) - self._grace > deadline:
            return False
        return self.late_by(entry, before) <= 0 or finish > before + _STILL

    def _cycle_seconds(self) -> float:
        """A chunk of prompt and the round behind it: what one turn more or less makes."""
        prices, rows = self._prices, max(1, len(self.books.running))
        chunk = prices.prefill_step + self._pace.chunk * prices.prefill_token
        return chunk + prices.decode_step + rows * prices.decode_token

    def _finishes_before(self) -> dict[str, float]:
        """When everybody ends if nobody is let in."""
        if self._before is None:
            walk = self.walk()
            self._before = {entry.booking.key: walk.long_finish(entry) for entry in self.books.entries}
        return self._before

    def seconds_to_the_end(self) -> float:
        """Until the last of those who are there has ended, with a long answer."""
        return max(self._finishes_before().values(), default=0.0)

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
        if entry.booking.deadline is not None:
            own_late = self.own_late(self.walk(entry, without, refill, until=entry), entry)
            if own_late > 0 or not self.timed:
                return Check(own_late, [], entry.begun_at, entry.finish_at, self._due(entry))
        walk = self.walk(entry, without, until=None if self.timed else entry)
        hurt = self.hurt(walk, without)
        return Check(own_late, hurt, entry.begun_at, entry.finish_at, self._due(entry), bound_of(entry))

    def _due(self, entry: Entry) -> float:
        return entry.first_at if self.by_first_token(entry) else entry.finish_at


def bound_of(entry: Entry) -> Bound:
    """From the walk that was taken last."""
    tokens = entry.expected_left - 1
    pace = (entry.finish_at - entry.first_at) / tokens if tokens > 0 else 0.0
    return Bound(entry.begun_at, entry.first_at, pace)
