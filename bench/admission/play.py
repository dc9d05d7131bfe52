"""A load played against a door on simulated time, to the end of its last request."""

from collections.abc import Callable, Sequence

from bench.admission.clock import Knocks
from bench.admission.door import Door, Refused
from bench.admission.offer import Offer
from bench.admission.outcome import End, Outcome
from bench.admission.replica import name_of, request_of
from specialist.events import Emitted, Event, Finished

OpenUp = Callable[[Knocks], Door]
Watch = Callable[[Offer, Refused], None]
_ENDS: dict[str, End] = {"deadline": "late", "cancelled": "cancelled", "error": "failed"}


class Play:
    """Callers do not wait for each other, and nobody comes back."""

    def __init__(self, offers: Sequence[Offer], open_up: OpenUp) -> None:
        self.clock = Knocks(offers, self._knock)
        self.door = open_up(self.clock)
        self.outcomes: list[Outcome] = []
        self.idle = 0.0
        """Seconds without anything to do."""
        self.most_inside = 0
        self.on_refusal: Watch = _ignore
        self.on_step: Callable[[], None] = _nothing
        self._inside: dict[str, Offer] = {}
        self._said: dict[str, int] = {}

    def run(self) -> list[Outcome]:
        while self._step():
            self.on_step()
        if self._inside:
            raise RuntimeError(f"nothing runs, and yet these never ended: {sorted(self._inside)[:5]}")
        return self.outcomes

    def advance(self, seconds: float) -> None:
        """For so long, or until the end of the step under way then; unwatched."""
        self.on_refusal, self.on_step = _ignore, _nothing
        until = self.clock.now() + seconds
        while self.clock.now() < until:
            if not self._step():
                self.clock.sleep(until - self.clock.now())

    def _step(self) -> bool:
        """False when there is nothing left to do and nobody left to come."""
        busy = self.door.step()
        self._listen()
        if busy or self._inside:
            if not busy:
                self.clock.sleep(0.001)
            return True
        if self.clock.next_at is None:
            return False
        self.idle += self.clock.next_at - self.clock.now()
        self.clock.sleep(self.clock.next_at - self.clock.now())
        return True

    def _knock(self, offer: Offer) -> None:
        refused = self.door.ask(request_of(offer))
        if refused is None:
            self._inside[name_of(offer)] = offer
            self.most_inside = max(self.most_inside, len(self._inside))
            return
        now, cpu = self.clock.now(), refused.cpu
        self.outcomes.append(Outcome(offer, "refused", now, refused.reason, refused.retry_after, cpu=cpu))
        self.on_refusal(offer, refused)

    def _listen(self) -> None:
        while events := self.door.events():
            for event in events:
                self._hear(event)

    def _hear(self, event: Event) -> None:
        name = event.request_id
        if isinstance(event, Emitted) and name in self._inside:
            self._said[name] = self._said.get(name, 0) + len(event.tokens)
            if self._said[name] >= self._inside[name].answer_tokens:
                self.door.stop(name)
        elif isinstance(event, Finished) and name in self._inside:
            self._end(name, self._end_of(event))

    def _end_of(self, event: Finished) -> End:
        if event.reason == "shed":
            return "shed" if self.door.displaced(event.request_id) else "given up"
        in_time = self.clock.now() <= self._inside[event.request_id].deadline
        return _ENDS.get(event.reason, "in time" if in_time else "late")

    def _end(self, name: str, end: End) -> None:
        offer = self._inside.pop(name)
        self._said.pop(name, None)
        beside_lower = self.door.serves_below(offer.priority)
        self.outcomes.append(Outcome(offer, end, self.clock.now(), beside_lower=beside_lower))


def _ignore(offer: Offer, refused: Refused) -> None:
    pass


def _nothing() -> None:
    pass
