"""The laws of schedulers and desks, held over every replica's process."""

from typing import Any

from admission.forecast import Admit, Booking, Verdict
from bench.simulation.court import Court
from bench.simulation.replica import ReplicaHouse
from bench.simulation.scheduler_laws import Laws
from octet.mishap import words_of
from router.shadow.request import SUFFIX
from specialist.engines.sim import SimEngine
from specialist.events import Admitted, Event, Finished, Preempted
from specialist.request import Request
from specialist.service.job import Job
from specialist.step import Step

_MOST_RETRY_AFTER = 30.0 * 1.5
"""Capped, and then spread."""


class ReplicaLaws:
    """From its start on. Its own requests, those of the warm-up, are among them."""

    def __init__(self, name: str, house: ReplicaHouse, court: Court) -> None:
        self._name = name
        self._house = house
        self._court = court
        self._scheduler: Any = house.replica.scheduler
        engine = house.replica.engine
        if not isinstance(engine, SimEngine):
            raise TypeError("only a simulated engine can be watched")
        self._laws = Laws(house.replica.scheduler, engine, engine.model)
        self._events: list[Event] = []
        self._ended: set[str] = set()
        """Whoever was to end, until the engine has looked."""
        self._whose: dict[str, str] = {}
        """The caller's name of a request, by the replica's own; shadows have no caller."""
        self._watch_scheduler()
        self._watch_desk()
        self._watch_ends()
        house.engine.on_turn = self._turned
        house.engine.on_death = self._died

    def at_rest(self) -> None:
        """Nothing is left of anybody."""
        require, house = self._court.require, self._house
        self._court.try_all(self._laws.at_rest)
        require(not house.generator.num_live, "no request is left at a replica", self._name)
        require(not house.generator.num_open, "no call is left at a replica", self._name)
        require(not house.desk.books.num_live, "the desk's books are empty", self._name)
        require(not house.reception.num_receiving, "nobody is left in a reception", self._name)
        require(not getattr(house.adapters, "num_in_use", 0), "no adapter is held", self._name)

    def forgotten(self, public_id: str) -> None:
        """Its caller has gone a while ago."""
        if self._house.engine.num_unread:
            return  # the step under way takes long: it will be seen at its end
        live = self._scheduler.ledger.live
        left = [key for key, whose in self._whose.items() if whose == public_id and key in live]
        self._court.require(not left, "nobody is computed for whom nobody waits", self._name, public_id)

    @property
    def is_idle(self) -> bool:
        return not (self._house.generator.num_open or self._scheduler.ledger.live)

    def _turned(self) -> None:
        self._check_ends()
        self._check_seats()
        events, self._events = self._events, []
        self._court.try_all(lambda: self._laws.after_event(events))

    def _watch_ends(self) -> None:
        engine: Any = self._house.engine
        end, submit = engine.end, engine.submit

        def watched_submit(job: Job) -> None:
            is_copy = job.public_id.endswith(SUFFIX)
            self._court.require(job.booking.shadow == is_copy, "a copy is treated as one", self._name, job.public_id)
            if not is_copy:
                self._whose[job.request.request_id] = job.public_id
            submit(job)

        def watched(request_id: str, reason: str) -> None:
            self._ended.add(request_id)
            end(request_id, reason)

        engine.end, engine.submit = watched, watched_submit

    def _check_ends(self) -> None:
        """Whoever is to end is gone as soon as the engine has looked into its inbox."""
        if self._ended and not self._house.engine.num_unread:
            left = self._ended & self._scheduler.ledger.live.keys()
            self._court.require(not left, "nobody is computed who was to end", self._name, left)
            self._ended.clear()

    def _check_seats(self) -> None:
        spec, ledger = self._house.spec, self._scheduler.ledger
        most = spec.max_running + spec.max_waiting
        self._court.require(len(ledger.live) <= most, "no more wait than may", self._name, len(ledger.live), most)

    def _died(self, error: Exception) -> None:
        self._court.see("replica died")
        if str(error) != words_of("step.dies"):
            self._court.blame(error, "no request stops the loop of steps", self._name)

    def _watch_scheduler(self) -> None:
        scheduler, laws, court = self._scheduler, self._laws, self._court
        submit, take_events = scheduler.submit, scheduler.take_events
        assemble_step, set_aside = scheduler.assemble_step, scheduler.set_aside

        def watched_submit(request: Request) -> None:
            submit(request)
            laws.submitted(request)

        def watched_take() -> list[Event]:
            events: list[Event] = take_events()
            self._events += events
            for event in events:
                self._note(event)
            return events

        def watched_assemble() -> Step | None:
            step: Step | None = assemble_step()
            if step is not None:
                court.try_all(lambda: laws.assembled(step))
            return step

        def watched_set_aside(request_id: str, beneficiary: str) -> bool:
            is_aside: bool = set_aside(request_id, beneficiary)
            if is_aside:
                court.see("set aside")
                laws.set_aside(scheduler.ledger.live[request_id])
            return is_aside

        scheduler.submit, scheduler.take_events = watched_submit, watched_take
        scheduler.assemble_step, scheduler.set_aside = watched_assemble, watched_set_aside

    def _note(self, event: Event) -> None:
        if isinstance(event, Admitted):
            if event.num_hit_tokens:
                self._court.see("prefix hit")
        elif isinstance(event, Preempted):
            self._court.see(f"preempted for {event.cause}")
        elif isinstance(event, Finished):
            self._court.see(f"finished by {event.reason}")
            self._court.note(f"{self._name} {event.request_id} {event.reason}")

    def _watch_desk(self) -> None:
        desk: Any = self._house.desk
        ask = desk.ask

        def watched(booking: Booking, now: float) -> Verdict:
            verdict: Verdict = ask(booking, now)
            self._check(booking, verdict)
            return verdict

        desk.ask = watched

    def _check(self, booking: Booking, verdict: Verdict) -> None:
        court, books = self._court, self._house.desk.books
        if isinstance(verdict, Admit):
            leaving = {*verdict.displaced, *verdict.aside}
            self._check_shadows(booking, leaving)
            for entry in (*books.entries, *books.aside):
                if entry.booking.key in leaving:
                    court.see("displaced" if entry.booking.key in verdict.displaced else "moved aside")
                    is_lower = entry.booking.shadow or (
                        not booking.shadow and entry.booking.priority < booking.priority
                    )
                    court.require(is_lower, "who gives way is strictly lower", booking, entry.booking)
            return
        court.see(f"desk: {verdict.reason}")
        retry = verdict.retry_after
        court.require(retry is None or 0 < retry <= _MOST_RETRY_AFTER, "a retry-after is worth something", verdict)

    def _check_shadows(self, booking: Booking, leaving: set[str]) -> None:
        """At the moment when somebody is let in, and those have left."""
        there = [entry.booking for entry in self._house.desk.books.entries if entry.booking.key not in leaving]
        has_seat = len(there) < self._house.spec.max_running
        stays = any(other.shadow for other in (*there, booking))
        self._court.require(has_seat or not stays, "no shadow sits where a caller could", self._name, booking)
