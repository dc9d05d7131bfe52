"""The lanes of every specialist: they begin, are judged, promoted and rolled back, by hand or by policy."""

import logging
from collections.abc import Callable, Mapping, Sequence

from admission.lane import AdapterRef, LaneRecord, lane_id
from admission.lanes import POLICY, LaneBook, LaneError, LaneMove, Origin
from admission.trial import Rules, rules_of
from admission.window import Counts
from octet.store import AuditRow, Body
from router.control.change import Signed
from router.control.claims import Claims
from router.control.keeper import Keeper
from router.control.known import LANES, Known
from router.control.load_names import load_name
from router.control.offers import anchored, begun, is_asked_for, offered, origins
from router.control.pen import Pen, Revision
from router.control.refusals import conflict
from router.control.rows import row
from router.control.seen import Seen

_log = logging.getLogger(__name__)
GRACE = 3.0
"""Seconds that a lane may be without a replica before another takes its place in the book: a restart is none."""
_WHAT: Mapping[str, str] = {"begin": "begin_lane", "load": "load_lane", "trust": "trust_lane"}
Moved = tuple[LaneBook, LaneMove]
Move = Callable[[LaneBook | None], Moved | None]
"""From the book as it is; None: nothing is to be changed."""


class LaneBooks:
    def __init__(
        self, known: Known, pen: Pen, keeper: Keeper, token: Callable[[], str], told: Callable[[AuditRow], None]
    ) -> None:
        """`token` makes names differ that were chosen at the same moment elsewhere. `told` hears what is worth a word
        and changes nothing."""
        self._known = known
        self._pen = pen
        self._keeper = keeper
        self._token = token
        self._told = told
        self._claims = Claims()
        self._overruled: set[str] = set()
        """Specialists whose lane another router's configuration has begun."""
        self._gone_since: dict[str, float] = {}

    def rules(self) -> Rules:
        return rules_of(self._known.ensemble.lanes)

    def counts(self, book: LaneBook, now: float) -> dict[int, Counts]:
        """Of the lanes that matter, as far as they count."""
        return {
            number: self._known.judged.counts(lane_id(book.specialist, book.lane(number)), now, since)
            for number, since in book.evidence_from().items()
        }

    async def tick(self, now: float) -> None:
        for specialist in self._known.ensemble.names:
            await self._observe(specialist, now)
            await self._judge(specialist, now)

    async def meet(self, now: float) -> None:
        """Begin the lanes of specialists whose first replica has just reported: until then nothing counts for one."""
        for specialist in self._known.ensemble.names:
            if self._known.book(specialist) is None:
                await self._observe(specialist, now)

    async def load(self, specialist: str, path: str, name: str, signed: Signed, now: float) -> None:
        """At every replica that can be reached, or not at all. Raises Refusal."""
        self._known.look()
        await self._observe(specialist, now)
        book = self._book(specialist)
        load_as = load_name(name, book.next_number, self._token())
        async with self._keeper.installing(specialist, load_as, path) as digest:
            refs = (AdapterRef(name, load_as, digest, path),)
            await self._order(specialist, lambda current: current.load(refs, signed.who, signed.why, now))
        await self._keeper.reported(specialist, load_as)

    async def promote(self, specialist: str, name: str, signed: Signed, now: float) -> None:
        """Raises Refusal."""

        def promoted(book: LaneBook) -> Moved:
            moved = anchored(book.promote(name or None, signed.who, signed.why, now))
            self._check_is_held(specialist, moved[0].serving)
            return moved

        await self._order(specialist, promoted)

    async def roll_back(self, specialist: str, signed: Signed, now: float) -> None:
        """Raises Refusal."""

        def rolled_back(book: LaneBook) -> Moved:
            moved = anchored(book.roll_back(signed.who, signed.why, now))
            if moved[0].serving.number != book.serving.number:
                self._check_is_held(specialist, moved[0].serving)
            return moved

        await self._order(specialist, rolled_back)

    def _book(self, specialist: str) -> LaneBook:
        book = self._known.book(specialist)
        if book is None:
            raise conflict(f"no replica of {specialist} has reported yet: its lanes are not known", "specialist")
        return book

    def _check_is_held(self, specialist: str, lane: LaneRecord) -> None:
        if not self._known.holders(specialist, lane):
            raise conflict(f"no replica of {specialist} holds {lane} now: nobody could answer on it", "specialist")

    async def _order(self, specialist: str, move: Callable[[LaneBook], Moved]) -> None:
        self._known.look()
        self._book(specialist)

        def revise(body: Body | None) -> Revision:
            if body is None:
                raise conflict(f"the lanes of {specialist} are not known any more", "specialist")
            try:
                return _revision(move(LaneBook.from_body(body)))
            except LaneError as error:
                raise conflict(str(error)) from None

        await self._pen.order(LANES, specialist, revise)

    def remark(self, specialist: str) -> str:
        """What is not as it should be with the lane that serves; empty where all is."""
        book = self._known.book(specialist)
        if book is not None and self._known.is_lost(specialist, book.serving):
            return f"{_lost(book.serving)}: nobody answers on it"
        if specialist in self._overruled:
            return "begun from the configuration of another router, which is not this one's"
        return ""

    async def _observe(self, specialist: str, now: float) -> None:
        """What the replicas run now, where it is not what is written down."""
        seen = sorted(self._known.seen(specialist), key=lambda each: each.name)
        config, book = self._known.ensemble.specialist(specialist), self._known.book(specialist)
        if not seen:
            return
        own = origins(seen, config)
        if book is None:
            await self._begin(
                specialist, own, lambda current: begun(None, seen, config, now) if current is None else None
            )
            return
        self._claim(book, own)
        if is_asked_for(book, own) and any(self._known.could_serve(each, book.serving) for each in seen):
            self._gone_since.pop(specialist, None)
            self._overruled.discard(specialist)
            if offered(book, seen, now) is not None:
                await self._act(specialist, lambda current: None if current is None else offered(current, seen, now))
        elif now - self._gone_since.setdefault(specialist, now) >= GRACE:
            if self._claims.is_overruled(book, own):
                self._tell_overruled(book, now)
            await self._begin(specialist, own, lambda current: self._replaced(current, seen, now))

    async def _begin(self, specialist: str, own: frozenset[Origin], move: Move) -> None:
        """And remember that it was written down, before anybody else's change of it is heard of."""
        made: list[LaneBook] = []

        def moved(current: LaneBook | None) -> Moved | None:
            found = move(current)
            made[:] = [] if found is None else [found[0]]
            return found

        if await self._act(specialist, moved) and made:
            self._claim(made[0], own)

    def _claim(self, book: LaneBook, own: frozenset[Origin]) -> None:
        if (LANES, book.specialist) not in self._known.shelf.unsaved:
            self._claims.note(book, own)

    def _tell_overruled(self, book: LaneBook, now: float) -> None:
        """Once."""
        if book.specialist in self._overruled:
            return
        self._overruled.add(book.specialist)
        why = "routers that share this store are configured differently: the one that began last is followed"
        _log.error("%s: %s; %s is not this router's", book.specialist, why, book.serving)
        self._told(row(now, POLICY, why, "other_configuration", book.specialist, "", f"{book.serving} serving"))

    def _replaced(self, book: LaneBook | None, seen: Sequence[Seen], now: float) -> Moved | None:
        """What follows where nobody could serve the lane that is to, or it is not what is asked for."""
        if book is None:
            return None
        config = self._known.ensemble.specialist(book.specialist)
        is_overruled = self._claims.is_overruled(book, origins(seen, config))
        return (None if is_overruled else begun(book, seen, config, now)) or self._given_up(book, now)

    def _given_up(self, book: LaneBook, now: float) -> Moved | None:
        """The lane before, where what was loaded for this one is nowhere any more."""
        if not self.rules().roll_back or not self._known.is_lost(book.specialist, book.serving):
            return None
        moved = book.give_up(_lost(book.serving), now)
        if moved is None or not self._known.holders(book.specialist, moved[0].serving):
            return None
        return anchored(moved)

    async def _judge(self, specialist: str, now: float) -> None:
        book = self._known.book(specialist)
        if book is None:
            return
        if self._judged(book, now) is not None:
            await self._act(specialist, lambda current: None if current is None else self._judged(current, now))

    def _judged(self, book: LaneBook, now: float) -> Moved | None:
        floor = self._known.ensemble.specialist(book.specialist).floor
        after, move = book.judge(self.counts(book, now), now, self.rules(), floor)
        if move is None or not self._is_possible(book, after):
            return None
        return anchored((after, move))

    def _is_possible(self, before: LaneBook, after: LaneBook) -> bool:
        """By itself no lane comes to serve that fewer replicas hold, unless it is the one before, which must only be
        there."""
        if after.serving.number == before.serving.number:
            return True
        holders = len(self._known.holders(before.specialist, after.serving))
        if before.previous is not None and after.serving.number == before.previous.number:
            return holders > 0
        return holders > 0 and holders >= len(self._known.holders(before.specialist, before.serving))

    async def _act(self, specialist: str, move: Move) -> bool:
        """Whether anything was changed."""

        def revise(body: Body | None) -> Revision | None:
            moved = move(None if body is None else LaneBook.from_body(body))
            return None if moved is None else _revision(moved)

        return await self._pen.act(LANES, specialist, revise)


def _lost(lane: LaneRecord) -> str:
    return f"no replica has the content of {lane} any more, and it cannot be loaded again"


def _revision(moved: Moved) -> Revision:
    book, move = moved
    return Revision(book.to_body(), _row(book.specialist, move))


def _row(specialist: str, move: LaneMove) -> AuditRow:
    what = _WHAT.get(move.what, move.what)
    return row(move.at, move.by, move.why, what, specialist, move.before, move.after)
