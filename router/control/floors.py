"""Learned floors of the specialists: when they are learned, and learned again on an operator's order."""

from dataclasses import dataclass

from admission.breakers import BreakerRecord
from admission.budgets import bucket_seconds
from admission.floors import FloorBook, Floors, Tally, floors_in_force, tally_of
from admission.lanes import LaneRecord, lane_id
from octet.limits import shorten
from octet.terminal import pluralize
from router.control.audit import (
    RESERVED_AUTHORS,
    AuditWriter,
    ChangeAuthor,
    DocumentRevision,
    audit_row,
    conflict,
)
from router.control.state import FLOOR, SharedState
from router.store.rows import DocumentBody
from router.verify.by_task import NONE

_EMPTY_BOOK = FloorBook()


@dataclass(frozen=True)
class FloorRegistry:
    _state: SharedState
    _audit: AuditWriter

    def book(self, specialist: str) -> FloorBook:
        return self._state.documents.read(FLOOR, specialist, FloorBook.from_body) or _EMPTY_BOOK

    def in_force(self, specialist: str) -> Floors:
        config = self._state.ensemble.specialist(specialist)
        return floors_in_force(config.floor, config.verify, self.book(specialist))

    def is_learning(self, specialist: str) -> bool:
        """Whether the specialist has yet to learn its first floor and can, so that more of its answers are judged. It
        cannot if its verifier could not judge any of as many answers as learning needs."""
        is_stuck = self._state.unavailable.get(specialist, 0) >= self._state.ensemble.correctness.learn_samples
        return self._has_to_learn(specialist) and not is_stuck

    def progress(self, specialist: str, now: float) -> str:
        """Describe how far learning the first floor is; "" if none is to be learned."""
        lanes = self._state.lanes(specialist)
        if not self._has_to_learn(specialist) or lanes is None:
            return ""
        counts = self._evidence(specialist, lanes.serving, self.book(specialist), now).by_verifier
        most = max((each.total for each in counts.values()), default=0)
        fresh = ", once its lane is trusted" if lanes.serving.fresh else ""
        missed, verifier = (
            self._state.unavailable.get(specialist, 0),
            self._state.ensemble.specialist(specialist).verify,
        )
        unable = f"; the verifier {shorten(verifier)} could not run for the last {pluralize(missed, 'answer')}"
        samples = self._state.ensemble.correctness.learn_samples
        return f"{most} of {samples} samples{fresh}{unable if missed else ''}"

    def _has_to_learn(self, specialist: str) -> bool:
        config = self._state.ensemble.specialist(specialist)
        return config.floor == "auto" and config.verify != NONE and not self.book(specialist).learned

    async def learn(self, specialist: str, breaker: BreakerRecord, now: float) -> None:
        """Learn the floors that the trusted serving lane has shown, unless it is demoted: a demoted lane sets no floor
        but that which an operator orders."""
        if self._learned(specialist, self.book(specialist), breaker, now) is None:
            return

        def revise(body: DocumentBody | None) -> DocumentRevision | None:
            before = _EMPTY_BOOK if body is None else FloorBook.from_body(body)
            after = self._learned(specialist, before, breaker, now)
            if after is None:
                return None
            new = {name: each for name, each in after.learned.items() if before.learned.get(name) != each}
            why = "; ".join(
                f"{name}: {each.good} of {each.total} passed in lane {each.lane}" for name, each in new.items()
            )
            author = ChangeAuthor("breaker", why)
            row = audit_row(now, author, "learn_floor", specialist, describe_book(before), describe_book(after))
            return DocumentRevision(after.to_body(), row)

        await self._audit.act(FLOOR, specialist, revise)

    async def relearn(self, specialist: str, author: ChangeAuthor, now: float) -> None:
        """Forget the floors, and learn new ones from the answers judged from now on. Raises Refusal."""
        if self._state.ensemble.specialist(specialist).floor == "none":
            raise conflict(f"{specialist} learns no floor, because its configuration has `floor: none`", "specialist")

        def revise(body: DocumentBody | None) -> DocumentRevision:
            before = _EMPTY_BOOK if body is None else FloorBook.from_body(body)
            row = audit_row(now, author, "relearn_floor", specialist, describe_book(before), describe_book(_EMPTY_BOOK))
            return DocumentRevision(FloorBook(since=now).to_body(), row)

        await self._audit.order(FLOOR, specialist, revise)

    def _learned(self, specialist: str, book: FloorBook, breaker: BreakerRecord, now: float) -> FloorBook | None:
        """Return the book with the floors that can be learned now; None if there is none."""
        config, lanes = self._state.ensemble.specialist(specialist), self._state.lanes(specialist)
        if config.floor == "none" or lanes is None or lanes.serving.fresh:
            return None
        if breaker.state != "closed" and book.since <= breaker.since:
            return None
        serving, tally = lanes.serving, self._evidence(specialist, lanes.serving, book, now)
        if config.floor != "auto":
            tally = tally_of({name: each for name, each in tally.by_verifier.items() if name != config.verify})
        renews = serving.by not in RESERVED_AUTHORS  # an operator promoted it
        after = book.learn(tally, serving.number, self._state.ensemble.correctness, now, renews=renews)
        return None if after is book else after

    def _evidence(self, specialist: str, lane: LaneRecord, book: FloorBook, now: float) -> Tally:
        """Return the verdicts to learn from: if an operator ordered it, those in buckets that began after the order."""
        correctness = self._state.correctness
        since = book.since + bucket_seconds(correctness.span) if book.since else 0.0
        return self._state.tally(specialist, lane_id(specialist, lane), now, since)


def describe_book(book: FloorBook) -> str:
    return ", ".join(f"{name} {each.rate:.1%}" for name, each in book.learned.items()) or "no floor"
