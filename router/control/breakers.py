"""The correctness breakers of the lanes that serve: stepped, held, released."""

from dataclasses import dataclass

from admission.correctness import Hold, Rules, Standing, Transition, rules_of, step
from admission.lane import lane_id
from admission.window import Counts
from octet.rpc.refusal import invalid, shorten
from octet.store import AuditRow, Body
from router.control.change import Signed
from router.control.known import BREAKER, Known, ids_of
from router.control.pen import Pen, Revision
from router.control.refusals import conflict
from router.control.rows import row
from router.control.sheet import Sheet

WHO = "breaker"
_SETTLED = 0.1
"""A share of the breach: which side of the floor a rate is on is written down when it has stayed there for so long."""


@dataclass(frozen=True, slots=True)
class _Stepped:
    """What was made of a document since it was written."""

    sheet: Sheet
    lane_id: str
    standing: Standing
    differs_since: float | None


class Breakers:
    def __init__(self, known: Known, pen: Pen) -> None:
        self._known = known
        self._pen = pen
        self._stepped: dict[str, _Stepped] = {}

    def sheet(self, specialist: str) -> Sheet:
        return self._known.shelf.read(BREAKER, specialist, Sheet.from_body) or _EMPTY

    def standing(self, specialist: str) -> Standing:
        """Of the lane that serves, or would."""
        return self._standing(specialist, self.sheet(specialist))

    def rules(self, specialist: str) -> Rules:
        ensemble = self._known.ensemble
        return rules_of(ensemble.correctness, ensemble.specialist(specialist).floor)

    def counts(self, specialist: str, now: float) -> Counts:
        identity, _ = self._lane(specialist)
        return self._known.judged.counts(identity, now)

    async def tick(self, now: float) -> None:
        for specialist in self._known.ensemble.names:
            if self._known.book(specialist) is not None:
                await self._step(specialist, now)

    async def hold(self, specialist: str, held: str, signed: Signed, now: float) -> None:
        """Raises Refusal."""
        if held not in ("open", "closed"):
            raise invalid("hold", "open or closed", shorten(held))
        how: Hold = "open" if held == "open" else "closed"

        def revise(body: Body | None) -> Revision:
            sheet = _sheet_of(body)
            after = f"held {how}"
            changed = sheet.hold(how, signed.who, signed.why, now).to_body()
            return Revision(changed, row(now, *_by(signed), "hold_breaker", specialist, _shown(sheet), after))

        await self._pen.order(BREAKER, specialist, revise)

    async def release(self, specialist: str, signed: Signed, now: float) -> None:
        """Raises Refusal."""

        def revise(body: Body | None) -> Revision:
            sheet = _sheet_of(body)
            if sheet.held.hold is None:
                raise conflict(f"nobody holds the breaker of {specialist}", "specialist")
            released = sheet.release()
            state = self._standing(specialist, released).state
            change = row(now, *_by(signed), "release_breaker", specialist, _shown(sheet), state)
            return Revision(released.to_body(), change)

        await self._pen.order(BREAKER, specialist, revise)

    async def _step(self, specialist: str, now: float) -> None:
        sheet, rules = self.sheet(specialist), self.rules(specialist)
        identity, _ = self._lane(specialist)
        before = self._standing(specialist, sheet)
        after, transition = step(before, self.counts(specialist, now), now, rules)
        differs_since = self._differs_since(specialist, sheet, after, now)
        self._stepped[specialist] = _Stepped(sheet, identity, after if transition is None else before, differs_since)
        settled = differs_since is not None and now - differs_since >= rules.breach * _SETTLED
        if transition is not None or settled:
            await self._pen.act(BREAKER, specialist, lambda body: self._revised(specialist, body, now))

    def _revised(self, specialist: str, body: Body | None, now: float) -> Revision | None:
        """What this moment makes of the document, whoever wrote it last."""
        sheet, rules = _sheet_of(body), self.rules(specialist)
        counts, (identity, since) = self.counts(specialist, now), self._lane(specialist)
        before = self._standing(specialist, sheet)
        after, transition = step(before, counts, now, rules)
        if _timers(after) == _timers(sheet.standing(identity, since)) and transition is None:
            return None
        book = self._known.book(specialist)
        changed = sheet.with_lane(identity, after, ids_of(book) if book else ()).to_body()
        if transition is not None:
            return Revision(changed, _row_of(transition, specialist))
        what = "above_floor" if after.below_since is None else "below_floor"
        why = f"{counts.good} of {counts.total} passed, the floor is {rules.floor or 0:.1%}"
        return Revision(changed, row(now, WHO, why, what, specialist, before.state, after.state))

    def _standing(self, specialist: str, sheet: Sheet) -> Standing:
        """As it was stepped here since the document was written, else as the document says."""
        identity, since = self._lane(specialist)
        stepped = self._stepped.get(specialist)
        if stepped is not None and stepped.lane_id == identity and stepped.sheet == sheet:
            return sheet.over(stepped.standing)
        return sheet.standing(identity, since)

    def _differs_since(self, specialist: str, sheet: Sheet, after: Standing, now: float) -> float | None:
        """Since when the timers are not as they are written down; None: they are."""
        if _timers(after) == _timers(sheet.standing(*self._lane(specialist))):
            return None
        stepped = self._stepped.get(specialist)
        known = None if stepped is None or stepped.sheet != sheet else stepped.differs_since
        return now if known is None else known

    def _lane(self, specialist: str) -> tuple[str, float]:
        book = self._known.book(specialist)
        return ("", 0.0) if book is None else (lane_id(specialist, book.serving), book.serving.since)


_EMPTY = Sheet()


def _sheet_of(body: Body | None) -> Sheet:
    return _EMPTY if body is None else Sheet.from_body(body)


def _timers(standing: Standing) -> tuple[float | None, float | None]:
    return standing.below_since, standing.above_since


def _shown(sheet: Sheet) -> str:
    return f"held {sheet.held.hold}" if sheet.held.hold else "not held"


def _by(signed: Signed) -> tuple[str, str]:
    return signed.who, signed.why


def _row_of(transition: Transition, specialist: str) -> AuditRow:
    before, after = transition.before, transition.after
    return row(transition.at, WHO, transition.why, transition.what, specialist, before, after)
