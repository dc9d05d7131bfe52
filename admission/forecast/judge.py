"""What becomes of one who asks: in time or not, at whose cost, and what it may expect."""

from admission.forecast import shadows
from admission.forecast.books import Books
from admission.forecast.displace import Displacement
from admission.forecast.entry import Entry
from admission.forecast.errors import Kept
from admission.forecast.estimator import Estimator
from admission.forecast.prices import Prices
from admission.forecast.promise import Bound, Promise
from admission.forecast.retry import seconds_to_return
from admission.forecast.room import Room
from admission.forecast.sweep import Leaving, parted
from admission.forecast.trial import Check, Times, Trial, bound_of
from admission.forecast.under_way import UnderWay
from admission.forecast.usual import Usual
from admission.forecast.verdict import Admit, Outlook
from admission.forecast.walk import NOBODY_ELSE, Pace, Refill

_CHANCE = 0.5
"""Of the time that those above usually take, how much is kept for them when somebody below is let in."""
_STALE_SECONDS = 5.0
"""A measurement that is older may not be true any more."""


class Judge:
    """Looks at the books, and changes nothing in them."""

    def __init__(self, room: Room, books: Books, estimator: Estimator, chunk: int) -> None:
        self.room = room
        self.books = books
        self.estimator = estimator
        self.usual = Usual()
        self.kept = Kept()
        self.pace = Pace(chunk)
        self.under_way: UnderWay | None = None
        self.measured_at: float | None = None

    def seen_by(self, entry: Entry) -> Books:
        """A shadow is in nobody's way but another's: whoever is let in as if it were not there may make it go."""
        return self.books if entry.booking.shadow else self.books.without_shadows()

    def trial(self, now: float, books: Books | None = None, prices: Prices | None = None) -> Trial | None:
        """None while no price is known."""
        prices = prices or self.estimator.prices
        if prices is None:
            return None
        books = self.books if books is None else books
        return Trial(books, self.room, prices, self.pace, self.estimator.margin, now, self.under_way)

    def weigh(self, entry: Entry, trial: Trial, crowded: tuple[str, ...]) -> Admit | Check:
        """What is wrong, where it cannot be let in."""
        books = trial.books
        refill = self._expected(entry, trial)
        check = trial.check(entry, crowded, refill)
        displaced: tuple[str, ...] | None = crowded
        if check.own_late > 0 or check.hurt:
            displaced = Displacement(entry, trial, refill, crowded, check).among(books)
        if displaced is None and not self._is_worth_a_try(entry, trial):
            return check
        if displaced is None:
            return self._admission(entry, trial, Leaving(crowded + shadows.all_but(crowded, self.books), ()), None)
        quiet = check.quiet if displaced == crowded else None
        beside = self._shadows_in_the_way(entry, trial, refill, displaced)
        leaving = parted(tuple(key for key in displaced if key not in crowded), self.books, trial)
        return self._admission(entry, trial, Leaving(crowded + leaving.shed + beside, leaving.aside), quiet)

    def _expected(self, entry: Entry, trial: Trial) -> Refill:
        """Who else will come. Those above whom nobody asks are to be in time, whatever comes. The others are kept out
        for those above only as far as those come all the time: a burst may be over before their time is."""
        if not len(trial.books):
            return NOBODY_ELSE
        if self.usual.is_topmost(trial.now, entry.priority):
            return self.usual.refill(trial.now, entry.priority)
        return Refill(higher=_CHANCE * self.usual.share_above(trial.now, entry.priority))

    def _is_worth_a_try(self, entry: Entry, trial: Trial) -> bool:
        """Prices change with steps only, and who is refused takes none: where nobody is there and nothing was measured
        for a while, who would be in time at the replica's best is let in to see how it is now."""
        at, best = self.measured_at, self.estimator.cheapest
        if len(trial.books) or at is None or trial.now - at < _STALE_SECONDS or best is None:
            return False
        hopeful = self.trial(trial.now, trial.books, best)
        return hopeful is not None and not hopeful.late_alone(entry)

    def _shadows_in_the_way(
        self, entry: Entry, trial: Trial, refill: Refill, displaced: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Shadows whose seats or blocks it needs; all of them where it or others would be late beside them."""
        if not self.books.num_shadows or entry.booking.shadow:
            return ()
        keys = shadows.in_its_place(entry, displaced, self.books, self.room)
        beside = self.trial(trial.now)
        if beside is not None and (entry.timed or trial.timed):
            check = beside.check(entry, displaced + keys, refill)
            if check.own_late > 0 or check.hurt:
                return shadows.all_but(displaced, self.books)
        return keys

    def _admission(self, entry: Entry, trial: Trial, leaving: Leaving, quiet: Bound | None) -> Admit:
        """`quiet` where it is known."""
        now = trial.now
        gone = leaving.shed + leaving.aside
        if quiet is None:
            trial.walk(entry, gone, until=entry)
            quiet = bound_of(entry)
        trial.walk(entry, gone, self.usual.refill(now), until=entry)
        load = self.usual.load(now)
        share = self.kept.hindsight.share(load, quiet.total(entry.expected_left))
        promise = Promise(now, load, quiet, bound_of(entry), share)
        total = promise.total(entry.expected_left)
        slack = trial.slack(entry, Times(promise.first, total)) if entry.timed else None
        return Admit(Outlook(promise.wait, total, slack), leaving.shed, leaving.aside, promise)

    def seconds_after_shedding(self, entry: Entry, trial: Trial) -> float | None:
        """When one that was let in and had to give way may come back; where the line is full, not before a place in it
        is free."""
        seconds = seconds_to_return(entry, trial, trial.check(entry, (), self._expected(entry, trial)))
        if seconds is None or self.books.num_live < self.room.total:
            return seconds
        return max(seconds, trial.seconds_to_an_end())
