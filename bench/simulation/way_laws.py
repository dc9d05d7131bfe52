"""From whom to whom a request went, held against who served and how far escalation had gone meanwhile."""

from collections.abc import Callable
from typing import Any

import grpc

from bench.simulation.caller import Told
from bench.simulation.court import Court
from bench.simulation.script import REPLICA_DEEDS, Script
from bench.simulation.standings import Moment, Standings, Turned
from octet.config.ensemble import Ensemble
from octet.telemetry.outcome import NO_ROOM
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire
from router.dispatch.record import Record
from router.reception.ask import Ask
from router.service.answering import Answering

_DONE_SECONDS = 0.02


class WayLaws:
    def __init__(self, ensemble: Ensemble, script: Script, standings: Standings, turned: Turned, court: Court) -> None:
        self._ensemble = ensemble
        self._replicas = script.setup.replicas
        self._is_sound = _is_sound(script)
        self._standings = standings
        self._turned = turned
        self._court = court
        self._without_room: dict[str, str] = {}
        """By request: the specialist that it counts against."""

    def watch(self, answering: Answering) -> None:
        """What a request counts as is told while it ends."""
        watched: Any = answering
        count, control, whose = watched._count, watched._control, [""]
        refused = control.refused

        def watched_count(ask: Ask, specialist: str, record: Record) -> None:
            whose[0] = ask.request_id
            count(ask, specialist, record)

        def watched_refused(specialist: str, intent: str) -> None:
            self._without_room[whose[0]] = specialist
            refused(specialist, intent)

        watched._count, control.refused = watched_count, watched_refused

    def ended(self, told: Told) -> None:
        receipt = told.receipt or (told.routed[-1] if told.routed else None)
        if receipt is None or not receipt.decision.primary or told.ended is None:
            return
        moments = self._standings.between(told.began, told.ended)
        self._followed(told, receipt)
        self._named(told, receipt)
        self._served(told, receipt, moments)
        self._of_priority(told, receipt, moments)
        self._relieved(receipt, moments)
        self._found_room(told, receipt)
        if told.code is grpc.StatusCode.OK and told.receipt_at is not None:
            is_soon = told.ended - told.receipt_at <= _DONE_SECONDS + told.ask.pause
            self._require(is_soon, "whoever has everything waits for nothing else", receipt)

    def _chain(self, told: Told, receipt: wire.Receipt) -> list[str]:
        """Whoever may be asked, in no order."""
        decision = receipt.decision
        fallback = "" if told.ask.force else self._ensemble.specialist(decision.primary).fallback or ""
        return [name for name in dict.fromkeys((decision.primary, decision.second_choice, fallback)) if name]

    def _followed(self, told: Told, receipt: wire.Receipt) -> None:
        asked = [attempt.specialist for attempt in receipt.attempts]
        is_chosen = set(asked) <= set(self._chain(told, receipt)) and len(set(asked)) <= 2
        self._require(is_chosen, "only who was chosen is asked, and one other", receipt, asked)
        full: set[str] = set()
        for attempt in receipt.attempts:
            is_new = attempt.replica not in full
            self._require(is_new, "nobody is asked again who had no room", receipt, attempt.replica)
            full |= {attempt.replica} if attempt.reason in NO_ROOM else set()

    def _named(self, told: Told, receipt: wire.Receipt) -> None:
        if told.code is not grpc.StatusCode.OK:
            return
        primary, between = receipt.decision.primary, receipt.between
        instead = between.instead_of == primary or between.spilled
        law = "whoever answers in another's place is named, and nobody else"
        self._require(instead == (receipt.specialist != primary), law, receipt, between.instead_of, between.spilled)

    def _served(self, told: Told, receipt: wire.Receipt, moments: list[Moment]) -> None:
        for attempt in receipt.attempts:
            is_served = any(attempt.specialist in moment.serves for moment in moments)
            self._require(is_served, "whoever only shadows answers nobody", receipt, attempt.specialist)
        if told.error is None or told.error.reason != error_pb2.ERROR_REASON_DEMOTED:
            return
        chain = set(self._chain(told, receipt)[: 1 if told.ask.adapters else None])
        is_so = any(not chain & moment.serves for moment in moments)
        self._require(is_so, "nobody is told that nobody serves while somebody does", receipt, chain)

    def _of_priority(self, told: Told, receipt: wire.Receipt, moments: list[Moment]) -> None:
        priority = told.ask.priority
        for name in {attempt.specialist for attempt in receipt.attempts}:
            may = any(self._floor(moment, name) <= priority for moment in moments)
            self._require(may, "nobody below the floor is answered", receipt, name, priority)
        if told.error is not None and told.error.reason == error_pb2.ERROR_REASON_BELOW_FLOOR:
            chain = self._chain(told, receipt)
            may = any(self._floor(moment, name) > priority for moment in moments for name in chain)
            self._require(may, "nobody is turned away but below the floor", receipt, priority)

    def _relieved(self, receipt: wire.Receipt, moments: list[Moment]) -> None:
        """The first who is asked is the primary, unless it only shadows or is to get less."""
        decision = receipt.decision
        if not receipt.attempts or not self._is_sound(decision.primary):
            return
        primary, second, first = decision.primary, decision.second_choice, receipt.attempts[0].specialist
        unsure = [self._is_unsure(decision, moment) and self._is_at_ease(second, moment) for moment in moments]
        if first != primary:
            may = any(unsure) or any(primary not in moment.serves for moment in moments)
            self._require(may, "only what nobody is sure of is taken off, and only for refusals", receipt, first)
        elif all(unsure) and self._is_sound(second):
            may = any(not {primary, second} <= moment.serves for moment in moments)
            self._require(may, "what is taken off goes to the second choice", receipt, first)

    def _is_unsure(self, decision: wire.Decision, moment: Moment) -> bool:
        is_unsure = decision.HasField("confidence") and decision.confidence < self._threshold(moment, decision.primary)
        return is_unsure and self._threshold(moment, decision.primary) > self._turned.threshold

    def _is_at_ease(self, name: str, moment: Moment) -> bool:
        return bool(name) and self._threshold(moment, name) == self._turned.threshold

    def _found_room(self, told: Told, receipt: wire.Receipt) -> None:
        attempts, against = receipt.attempts, self._without_room.get(told.ask.request_id)
        if against is not None and told.receipt is not None:  # who left in time was not told all
            theirs = [attempt for attempt in attempts if attempt.specialist == against]
            full = [index for index, attempt in enumerate(theirs) if attempt.reason in NO_ROOM]
            took = {routed.replica for routed in told.routed}
            had_none = full and not any(attempt.replica in took for attempt in theirs[full[-1] + 1 :])
            self._require(bool(had_none), "a specialist has room where one of its replicas has", receipt, against)
        if told.routed or told.error is None or not attempts or told.error.reason not in NO_ROOM:
            return
        is_counted = against is not None or not self._is_sound(attempts[0].specialist)
        self._require(is_counted, "whoever finds no room is counted", receipt)
        if len(attempts) >= self._ensemble.dispatch.max_attempts or any(
            each.reason not in NO_ROOM for each in attempts
        ):
            return
        lead, asked = attempts[0].specialist, {attempt.replica for attempt in attempts}
        left = {f"{lead}-{index}" for index in range(self._replicas[lead])} - asked
        self._require(not left, "nobody is refused while a replica is left to be asked", receipt, left)

    def _threshold(self, moment: Moment, name: str) -> float:
        return self._turned.at(moment.level(name))[0]

    def _floor(self, moment: Moment, name: str) -> int:
        return self._turned.at(moment.level(name))[1]

    def _require(self, holds: bool, law: str, receipt: wire.Receipt, *about: object) -> None:
        self._court.require(holds, law, receipt.request_id, *about)


def _is_sound(script: Script) -> Callable[[str], bool]:
    """Whether nothing ever happens to a specialist's replicas that would make others be asked before them."""
    setup = script.setup
    disturbed = {deed.target.rpartition("-")[0] for deed in script.deeds if deed.kind in REPLICA_DEEDS}
    is_shaky = bool(setup.fault_rate or {*setup.mishaps} - {"store.away"})
    return lambda name: not is_shaky and name not in disturbed
