"""What a step has to tell the desk: written by whoever takes the steps, booked by whoever keeps the books."""

from collections.abc import Sequence as Many
from typing import NamedTuple

from admission.forecast import Booking, Desk, Shape, UnderWay
from specialist.events import Admitted, Emitted, Event, Finished, Preempted
from specialist.hits import Hits
from specialist.request import Request
from specialist.scheduler import Scheduler
from specialist.step import Step

_NO_HITS = Hits()


class Taken(NamedTuple):
    """A step that was taken."""

    shape: Shape
    seconds: float
    """Since the one before where there was no pause between them."""
    keys: tuple[str, ...]
    chunk: int
    """Prompt tokens that a step takes while others decode."""
    left: tuple[tuple[str, int], ...]
    """Prompt tokens that are still to be computed."""


class Account(NamedTuple):
    at: float
    taken: Taken | None
    events: tuple[Event, ...]

    def book(self, desk: Desk) -> None:
        """Of somebody who is not in the books any more, nothing is booked."""
        for event in self.events:
            if isinstance(event, Emitted | Admitted | Preempted):
                _book_move(event, desk)
        if self.taken is not None:
            for key, num_left in self.taken.left:
                desk.computed(key, num_left)
            desk.stepped(self.taken.shape, self.taken.seconds, self.taken.keys, self.taken.chunk, self.at)
        for event in self.events:
            if isinstance(event, Finished):
                whole = event.reason in ("stop", "length")
                desk.ended(event.request_id, whole=whole, cut=event.reason != "stop", now=self.at)


def _book_move(event: Emitted | Admitted | Preempted, desk: Desk) -> None:
    match event:
        case Admitted():
            desk.started(event.request_id, event.num_tokens, event.num_hit_tokens)
        case Preempted():
            desk.preempted(event.request_id)
        case Emitted():
            desk.progressed(event.request_id, len(event.tokens))


class Accounts:
    """Belongs to whoever takes the steps."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._ended_at: float | None = None
        self._adapters: tuple[str, ...] = ()

    def of(self, step: Step | None, events: Many[Event], now: float) -> Account:
        """Behind the commit of the step, or for a moment without one."""
        taken = None if step is None else self._taken(step, now)
        self._ended_at = None if step is None else now
        return Account(now, taken, tuple(events))

    def _taken(self, step: Step, now: float) -> Taken:
        since = step.started_at if self._ended_at is None else self._ended_at
        shape = shape_of(step, switched=step.adapters != self._adapters)
        self._adapters = step.adapters
        keys = tuple(row.sequence.request.request_id for row in step.rows)
        left = tuple(
            (row.sequence.request.request_id, row.sequence.remaining) for row in step.rows if not row.num_samples
        )
        return Taken(shape, now - since, keys, self._scheduler.budget.tokens(), left)


def shape_of(step: Step, *, switched: bool) -> Shape:
    pairs = sum(len(row.tokens) * row.stop for row in step.rows)
    return Shape(step.mode == "prefill", step.num_tokens, pairs, switched)


def under_way(scheduler: Scheduler) -> UnderWay | None:
    """The step in flight. Only looks: another thread than the scheduler's may call it."""
    step = scheduler.in_flight
    if step is None:
        return None
    prefill = step.mode == "prefill"
    tokens = {
        row.sequence.request.request_id: len(row.tokens) if prefill else max(1, row.num_samples) for row in step.rows
    }
    return UnderWay(shape_of(step, switched=False), step.started_at, tokens)


def booking_of(
    request: Request, *, shadow: bool = False, exact: bool | None = None, hits: Hits = _NO_HITS, caller: str = ""
) -> Booking:
    """`exact` where something else than `stop_ids` may end the answer early, or may not; `caller` is the same for
    whoever only asks again."""
    return Booking(
        key=request.request_id,
        priority=request.priority,
        arrival=request.arrival,
        deadline=request.deadline,
        first_deadline=request.first_deadline,
        prompt_tokens=len(request.prompt),
        hit_tokens=hits.found,
        shared_tokens=hits.shared,
        max_tokens=request.max_tokens,
        exact=not request.stop_ids if exact is None else exact,
        shadow=shadow,
        adapters=request.lane.adapters,
        caller=caller,
    )
