"""Replicas that operators have drained: they are sent nothing new."""

import logging

from octet.store import Body
from router.control.change import Signed
from router.control.known import REPLICA, Known, is_what
from router.control.pen import Pen, Revision
from router.control.refusals import conflict, unknown_name
from router.control.rows import row
from router.control.seen import Seen

_log = logging.getLogger(__name__)


class Cordons:
    def __init__(self, known: Known, pen: Pen) -> None:
        self._known = known
        self._pen = pen

    def names(self) -> frozenset[str]:
        return frozenset(document.key for document in self._known.shelf.of_kind(REPLICA))

    def leave_nobody(self, specialist: str) -> bool:
        """Whether operators have drained everybody of a specialist who could answer, or could when they are back."""
        names = self.names()
        if not names:
            return False
        able = self._able(specialist)
        return bool(able) and all(each.name in names for each in able)

    def is_last(self, replica: str, specialist: str) -> bool:
        """Whether nobody else of a specialist answers now."""
        names = self.names() | {replica}
        return all(each.name in names for each in self._able(specialist) if each.linked)

    def _able(self, specialist: str) -> list[Seen]:
        """Those that are not known to be of another model, or to have other contents."""
        book = self._known.book(specialist)
        everybody = self._known.everybody(specialist)
        return [each for each in everybody if book is None or not each.linked or is_what(each, book.serving)]

    async def drain(self, replica: str, signed: Signed, now: float) -> None:
        """Raises Refusal."""
        specialist = self._check(replica)
        self._known.look()

        def revise(body: Body | None) -> Revision:
            if body is not None:
                raise conflict(f"{replica} is drained already, by {body.get('by')}: {body.get('why')}", "replica")
            cordon = {"by": signed.who, "why": signed.why, "since": now}
            after = "drained"
            if self.is_last(replica, specialist):
                after = f"drained; nobody is left to answer for {specialist}"
            return Revision(cordon, row(now, signed.who, signed.why, "drain", replica, "open", after))

        await self._pen.order(REPLICA, replica, revise)
        if self.is_last(replica, specialist):
            _log.warning("%s, which %s drained, was the last of %s that answers", replica, signed.who, specialist)

    async def undrain(self, replica: str, signed: Signed, now: float) -> None:
        """Also one that is gone. Raises Refusal."""
        if replica not in self.names():
            self._check(replica)

        def revise(body: Body | None) -> Revision:
            if body is None:
                raise conflict(f"nobody has drained {replica}", "replica")
            return Revision(None, row(now, signed.who, signed.why, "undrain", replica, "drained", "open"))

        await self._pen.order(REPLICA, replica, revise)

    def _check(self, replica: str) -> str:
        """Whose it is. Raises Refusal."""
        specialists = {each.name: each.specialist for each in self._known.replicas.seen()}
        if replica not in specialists:
            raise unknown_name("replica", replica, specialists)
        return specialists[replica]
