"""The laws of the scheduler and the admission controller, checked in every replica process."""

from typing import Any

from admission.forecast.bookings import AdmissionDecision, Admit, Booking
from octet.fault_points import fault_message
from router.quality.shadow_copy import SHADOW_SUFFIX
from simulation.replica import SimulatedReplica
from specialist.engines.sim.engine import SimEngine
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import Admitted, Event, Finished, Preempted, Step
from specialist.server.served_request import ServedRequest
from tests.simulation.laws.checker import LawChecker
from tests.simulation.laws.scheduler import Laws

_MOST_RETRY_AFTER = 30.0 * 1.5
"""Half as much again as the longest retry-after, which is 30 s including jitter."""


class ReplicaLaws:
    """Watches a replica from its start, including its warm-up requests."""

    def __init__(self, name: str, replica: SimulatedReplica, checker: LawChecker) -> None:
        self._name = name
        self._replica = replica
        self._checker = checker
        self._scheduler: Any = replica.replica.scheduler
        engine = replica.replica.engine
        if not isinstance(engine, SimEngine):
            raise TypeError("only a simulated engine can be watched")
        self._laws = Laws(replica.replica.scheduler, engine, engine.model)
        self._events: list[Event] = []
        self._ended: set[str] = set()
        """Requests that must end once the engine thread has read its inbox."""
        self._whose: dict[str, str] = {}
        """The caller's request id, by the replica's own id. Shadow requests are left out."""
        self._watch_scheduler()
        self._watch_controller()
        self._watch_ends()
        replica.engine.on_turn = self._turned
        replica.engine.on_death = self._died

    def at_rest(self) -> None:
        """Check that no trace of any request is left."""
        require, replica = self._checker.require, self._replica
        self._checker.try_all(self._laws.at_rest)
        require(not replica.handler.num_live, "no request is left at a replica", self._name)
        require(not replica.handler.num_open, "no call is left at a replica", self._name)
        require(not replica.controller.bookings.num_live, "the admission controller's bookings are empty", self._name)
        require(not replica.preparer.num_tokenizing, "no request is left in preparation", self._name)
        require(not getattr(replica.replica.adapters, "num_in_use", 0), "no adapter is held", self._name)

    def forgotten(self, public_id: str) -> None:
        """Check that the replica no longer computes this request, whose call ended some time ago."""
        if self._replica.engine.num_unread:
            return  # The step in flight takes long; its end will be checked.
        live = self._scheduler.ledger.live
        left = [key for key, whose in self._whose.items() if whose == public_id and key in live]
        self._checker.require(not left, "no request without a caller is computed", self._name, public_id)

    @property
    def is_idle(self) -> bool:
        return not (self._replica.handler.num_open or self._scheduler.ledger.live)

    def _turned(self) -> None:
        self._check_ends()
        self._check_slots()
        events, self._events = self._events, []
        self._checker.try_all(lambda: self._laws.after_event(events))

    def _watch_ends(self) -> None:
        engine: Any = self._replica.engine
        end, submit = engine.end, engine.submit

        def watched_submit(served: ServedRequest) -> None:
            is_copy = served.public_id.endswith(SHADOW_SUFFIX)
            self._checker.require(
                served.shadow == is_copy, "a shadow copy is treated as a shadow", self._name, served.public_id
            )
            if not is_copy:
                self._whose[served.request.request_id] = served.public_id
            submit(served)

        def watched(request_id: str, reason: str) -> None:
            self._ended.add(request_id)
            end(request_id, reason)

        engine.end, engine.submit = watched, watched_submit

    def _check_ends(self) -> None:
        """Once the engine thread has read its inbox, check that requests that had to end are gone."""
        if self._ended and not self._replica.engine.num_unread:
            left = self._ended & self._scheduler.ledger.live.keys()
            self._checker.require(not left, "an ended request is not computed", self._name, left)
            self._ended.clear()

    def _check_slots(self) -> None:
        spec, ledger = self._replica.spec, self._scheduler.ledger
        most = spec.max_running + spec.max_waiting
        self._checker.require(
            len(ledger.live) <= most,
            "no more requests are live than may run or wait",
            self._name,
            len(ledger.live),
            most,
        )

    def _died(self, error: Exception) -> None:
        self._checker.see("replica died")
        if str(error) != fault_message("step.dies"):
            self._checker.blame(error, "no request stops the loop of steps", self._name)

    def _watch_scheduler(self) -> None:
        scheduler, laws, checker = self._scheduler, self._laws, self._checker
        submit, take_events = scheduler.submit, scheduler.take_events
        assemble_step, suspend = scheduler.assemble_step, scheduler.suspend

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
                checker.try_all(lambda: laws.assembled(step))
            return step

        def watched_suspend(request_id: str, beneficiary: str) -> bool:
            is_suspended: bool = suspend(request_id, beneficiary)
            if is_suspended:
                checker.see("suspended")
                laws.suspend(scheduler.ledger.live[request_id])
            return is_suspended

        scheduler.submit, scheduler.take_events = watched_submit, watched_take
        scheduler.assemble_step, scheduler.suspend = watched_assemble, watched_suspend

    def _note(self, event: Event) -> None:
        if isinstance(event, Admitted):
            if event.num_hit_tokens:
                self._checker.see("prefix hit")
        elif isinstance(event, Preempted):
            self._checker.see(f"preempted for {event.cause}")
        elif isinstance(event, Finished):
            self._checker.see(f"finished by {event.reason}")
            self._checker.note(f"{self._name} {event.request_id} {event.reason}")

    def _watch_controller(self) -> None:
        controller: Any = self._replica.controller
        decide = controller.decide

        def watched(booking: Booking, now: float) -> AdmissionDecision:
            verdict: AdmissionDecision = decide(booking, now)
            self._check(booking, verdict)
            return verdict

        controller.decide = watched

    def _check(self, booking: Booking, verdict: AdmissionDecision) -> None:
        checker, books = self._checker, self._replica.controller.bookings
        if isinstance(verdict, Admit):
            leaving = {*verdict.displaced, *verdict.suspended}
            self._check_shadows(booking, leaving)
            for entry in (*books.active, *books.suspended):
                if entry.booking.key in leaving:
                    checker.see("displaced" if entry.booking.key in verdict.displaced else "suspended by the decision")
                    is_lower = entry.booking.shadow or (
                        not booking.shadow and entry.booking.priority < booking.priority
                    )
                    checker.require(
                        is_lower, "a preempted request has a strictly lower priority", booking, entry.booking
                    )
            return
        checker.see(f"controller: {verdict.reason}")
        retry = verdict.retry_after
        checker.require(retry is None or 0 < retry <= _MOST_RETRY_AFTER, "a retry-after is within its bounds", verdict)

    def _check_shadows(self, booking: Booking, leaving: set[str]) -> None:
        """Check that after an admission no shadow holds a slot that a caller could use."""
        there = [
            entry.booking for entry in self._replica.controller.bookings.active if entry.booking.key not in leaving
        ]
        has_slot = len(there) < self._replica.spec.max_running
        stays = any(other.shadow for other in (*there, booking))
        self._checker.require(
            has_slot or not stays, "no shadow holds a slot that a caller could use", self._name, booking
        )
