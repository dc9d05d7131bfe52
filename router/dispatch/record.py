"""What happens to a request on its way, written into its receipt."""

from octet.clock import Clock
from octet.v1 import inference_pb2 as wire
from router.observe.observers import Observers
from router.receipts.receipt import ReceiptDraft
from router.replicas.attempt import Attempt

TELL_SECONDS = 0.25
"""Observers hear of the gaps between tokens together, so often and at the end."""


class Record:
    def __init__(self, draft: ReceiptDraft, clock: Clock, observers: Observers) -> None:
        self.draft = draft
        self._clock = clock
        self._observers = observers
        self._accepted = self._last_chunk = self._told_at = 0.0
        self._gaps: list[float] = []
        """Since the observers were last told."""
        self._attempt: Attempt | None = None
        self._asked = 0.0
        self._span_id = ""
        self.was_accepted = False
        self.full: set[str] = set()
        """Specialists that had no room for it, at none of the replicas that were asked."""

    def asked(self, attempt: Attempt, span_id: str = "") -> None:
        """A replica is being asked, and told this id of a span where the request is traced."""
        self._attempt = attempt
        self._span_id = span_id
        self._asked = self._clock.now()
        self.draft.dispatched(self._asked)

    def spills(self, is_spill: bool) -> None:
        """Whether it is the second choice that is asked next, because the primary had no room."""
        self.draft.spilled(is_spill)

    def takes_over(self, first: str) -> None:
        """Of whom no replica was fit to answer, so that the second choice is asked next; empty: it is not so."""
        self.draft.taken_over(first)

    def accepted(self, accepted: wire.Accepted) -> bytes:
        """The event for the caller."""
        attempt = self._under_way
        replica = attempt.replica
        self.was_accepted = True
        self.full.discard(replica.specialist)
        self._accepted = self._clock.now()
        self.draft.accepted(replica.specialist, replica.name, attempt.breaker_state, accepted, self._accepted)
        return self.draft.routed()

    def had_no_room(self, specialist: str) -> None:
        self.full.add(specialist)

    def first_chunk(self) -> None:
        self._last_chunk = self._clock.now()
        self._told_at = self._last_chunk
        ttft = self.draft.first_chunk(self._last_chunk)
        self._observers.began(self._under_way.replica.specialist, ttft, self._last_chunk - self._accepted)

    def next_chunk(self) -> None:
        now = self._clock.now()
        self._gaps.append(now - self._last_chunk)
        self._last_chunk = now
        if now - self._told_at >= TELL_SECONDS:
            self._told_at = now
            self._tell_gaps()

    def used(self, usage: wire.Usage) -> None:
        self.draft.finished(usage, self._clock.now())

    def ended(self, error: wire.Error | None) -> None:
        """The attempt is over; without an error it answered."""
        self._tell_gaps()
        replica, began = self._under_way.replica, self._asked
        self.draft.attempt(
            replica.specialist,
            replica.name,
            self._clock.now() - began,
            error,
            began=began,
            span_id=self._span_id,
        )
        self._attempt = None

    def _tell_gaps(self) -> None:
        if self._gaps:
            gaps, self._gaps = self._gaps, []
            self._observers.gaps(self._under_way.replica.specialist, gaps)

    @property
    def _under_way(self) -> Attempt:
        if self._attempt is None:
            raise RuntimeError("nobody was asked")
        return self._attempt
