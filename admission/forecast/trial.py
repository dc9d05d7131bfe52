"""What would become of everybody if one more were let in."""

from bisect import insort
from collections.abc import Collection
from math import inf
from typing import NamedTuple

from admission.forecast.books import Books
from admission.forecast.entry import Entry, rank_of
from admission.forecast.prices import Prices
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
    begins: dict[str, float]
    """When each of those begins who give way to it."""
    wait: float
    """Seconds until the newcomer begins."""
    ends: float


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
        self._books = books
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
    ) -> Walk:
        running, line = self._seated()
        if without:
            running = [entry for entry in running if entry.booking.key not in without]
            line = [entry for entry in line if entry.booking.key not in without]
        if extra is not None:
            line = list(line)
            insort(line, extra, key=rank_of)
        self.num_walks += 1
        return Walk(self._room, self._prices, self._pace, refill).run(running, line, later, self._start)

    def _seated(self) -> tuple[list[Entry], list[Entry]]:
        """Who runs and who waits; who is in the step under way runs, even if the books do not say so yet."""
        running, line, begun = list(self._books.running), self._books.line, self._start.tokens
        if begun and line:
            running += [entry for entry in line if entry.booking.key in begun]
            line = [entry for entry in line if entry.booking.key not in begun]
        return running, line

    def late_alone(self, entry: Entry) -> bool:
        """Whether it could not be in time even if there were nobody else."""
        walk = Walk(self._room, self._prices, self._pace).run([], [entry])
        return self._own_finish(walk, entry, alone=True) * (1 + self._margin) > self.time_left(entry)

    def own_late(self, walk: Walk, entry: Entry, since: float = 0.0) -> float:
        """Seconds the newcomer ends past its deadline, where it comes `since` seconds from now.

        A lone one whose answer may well be shorter than it may be is in time when its first token is: refusing it
        would help nobody.
        """
        alone = not len(self._books)
        takes = (self._own_finish(walk, entry, alone=alone) - since) / (1 - walk.refill.higher)
        return takes * (1 + self._margin) + (0.0 if alone else self._grace) - self.time_left(entry)

    @staticmethod
    def _own_finish(walk: Walk, entry: Entry, *, alone: bool) -> float:
        return entry.first_at if alone and not entry.booking.exact else walk.long_finish(entry)

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
            for entry in self._books.entries
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
        prices, rows = self._prices, max(1, len(self._books.running))
        chunk = prices.prefill_step + self._pace.chunk * prices.prefill_token
        return chunk + prices.decode_step + rows * prices.decode_token

    def _finishes_before(self) -> dict[str, float]:
        """When everybody ends if nobody is let in."""
        if self._before is None:
            walk = self.walk()
            self._before = {entry.booking.key: walk.long_finish(entry) for entry in self._books.entries}
        return self._before

    def work(self, entry: Entry) -> float:
        """Seconds that are saved where it goes."""
        prices = self._prices
        return entry.prompt_left * prices.prefill_token + entry.expected_left * prices.decode_token

    def check(self, entry: Entry, without: Collection[str], refill: Refill) -> Check:
        """The newcomer's own deadline is judged with those to be expected; everybody else's with those who are there:
        what they were promised left room for others, and the newcomer is one of them."""
        walk = self.walk(entry, without, refill)
        own_late, wait, ends = self.own_late(walk, entry), entry.begun_at, entry.finish_at
        begins = {other.booking.key: other.begun_at for other in self._books.entries if other.shed_before(entry)}
        if not self.timed or (own_late > 0 and not begins):
            return Check(own_late, [], begins, wait, ends)
        return Check(own_late, self.hurt(self.walk(entry, without), without), begins, wait, ends)
