"""Escalation: one ladder for every specialist."""

from admission.escalation import Ladder, Rules, levels, rules_of, step
from admission.knobs import ESCALATION, UNSPECIFIED
from admission.window import Counts
from octet.store import Body
from router.between.standing import configured_knobs
from router.control.known import LADDER, Known
from router.control.pen import Pen, Revision
from router.control.rows import row


class Ladders:
    def __init__(self, known: Known, pen: Pen) -> None:
        self._known = known
        self._pen = pen
        self._stepped: dict[str, tuple[Ladder, Ladder]] = {}
        """As it is written down, and what was made of it since: timers are not worth a line."""

    def ladder(self, specialist: str) -> Ladder:
        written = self._known.shelf.read(LADDER, specialist, Ladder.from_body) or _BOTTOM
        return self._since(specialist, written)

    def rules(self) -> Rules:
        return rules_of(self._known.ensemble.escalation)

    async def tick(self, now: float) -> None:
        rules = self.rules()
        for specialist in self._known.ensemble.names:
            counts = self._known.demand.counts(specialist, now)
            await self._step(specialist, counts, now, rules, self.top(specialist, rules))

    def top(self, specialist: str, rules: Rules) -> int:
        """The highest level that changes something for an intent which may lead to this specialist."""
        intents = self._known.ensemble.intents
        elsewhere = {intent.name for intent in intents if intent.specialist not in (None, specialist)}
        base = configured_knobs(intents)
        return max(
            levels(knobs.threshold, knobs.floor, rules)
            for name, knobs in base.items()
            if name not in elsewhere or name == UNSPECIFIED
        )

    async def _step(self, specialist: str, counts: Counts, now: float, rules: Rules, top: int) -> None:
        written = self._known.shelf.read(LADDER, specialist, Ladder.from_body) or _BOTTOM
        after, move = step(self._since(specialist, written), counts, now, rules, top)
        if move is None:
            self._stepped[specialist] = (written, after)
            return

        def revise(body: Body | None) -> Revision | None:
            current = _BOTTOM if body is None else Ladder.from_body(body)
            stepped, moved = step(self._since(specialist, current), counts, now, rules, top)
            if moved is None:
                return None
            before, after = f"level {moved.before}", f"level {moved.after}"
            change = row(now, ESCALATION, moved.why, moved.what, specialist, before, after)
            return Revision(stepped.to_body(), change)

        await self._pen.act(LADDER, specialist, revise)

    def _since(self, specialist: str, written: Ladder) -> Ladder:
        known, after = self._stepped.get(specialist, (None, written))
        return after if known == written else written


_BOTTOM = Ladder()
