"""The replica's own front, with its admission desk, as a door."""

from random import Random
from time import thread_time

from admission.forecast import Admit, Booking
from bench.admission.door import Refused
from bench.admission.offer import Offer
from bench.admission.replica import Plant
from bench.admission.run import Errors
from octet.clock import Clock
from specialist.events import Event
from specialist.front import Front, prices_of
from specialist.loop import StepLoop
from specialist.request import Request


class ReckoningDoor:
    """Admission on. The desk starts from the cost model the steps are drawn around, as from a calibration."""

    def __init__(self, loop: StepLoop, plant: Plant, clock: Clock, seed: int) -> None:
        self._clock = clock
        self._front = Front(
            loop.scheduler,
            loop.engine,
            max_waiting=plant.max_waiting,
            prices=prices_of(plant.guess or plant.cost),
            jitter=Random(seed).random,
        )
        self._displaced: set[str] = set()

    def ask(self, request: Request) -> Refused | None:
        began = thread_time()
        verdict = self._front.submit(request)
        if isinstance(verdict, Admit):
            self._displaced.update(verdict.displaced)
            return None
        return Refused(verdict.reason.replace("_", " "), verdict.retry_after, thread_time() - began)

    def step(self) -> bool:
        return self._front.step() is not None

    def events(self) -> list[Event]:
        return self._front.take_events()

    def displaced(self, name: str) -> bool:
        return name in self._displaced

    def serves_below(self, priority: int) -> bool:
        return any(seq.request.priority < priority for seq in self._front.scheduler.running)

    def stop(self, name: str) -> None:
        self._front.end(name, "stop")

    def would_admit(self, offer: Offer) -> bool:
        booking = Booking(
            "comes back",
            offer.priority,
            arrival=offer.at,
            deadline=offer.deadline,
            prompt_tokens=offer.prompt_tokens,
            hit_tokens=0,
            max_tokens=offer.max_tokens,
            exact=offer.exact,
        )
        return isinstance(self._front.desk.ask(booking, self._clock.now()), Admit)

    def settle_in(self) -> None:
        """A pool finds its tables by identity, and a copy's are others."""
        pool = self._front.scheduler.pool
        pool.tables = {id(table): table for table in pool.tables.values()}

    def errors(self) -> Errors | None:
        error = self._front.desk.error()
        return None if error is None else Errors(error.step_p50, error.step_p90, error.total_p50, error.total_p90)
