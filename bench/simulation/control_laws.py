"""Breakers and ladders of all specialists, watched at every look that the router's control takes."""

from typing import Any

from bench.simulation.clock import Wall
from bench.simulation.correctness_laws import CorrectnessLaws
from bench.simulation.court import Court
from bench.simulation.ladder_laws import LadderLaws
from bench.simulation.standings import Turned
from octet.config.ensemble import Ensemble
from router.control.control import Control


class ControlLaws:
    """All times are the wall's: once somebody has set it nothing is held against anybody any more."""

    def __init__(self, ensemble: Ensemble, turned: Turned, control: Control, wall: Wall, court: Court) -> None:
        self._wall = wall
        self._began = wall.num_steps
        watched: Any = control
        self._breakers: Any = watched._breakers
        self._ladders: Any = watched._ladders
        self._correctness = {
            each.name: CorrectnessLaws(each.name, ensemble.correctness, each.floor, court)
            for each in ensemble.specialists
            if each.floor is not None
        }
        self._escalation = {name: LadderLaws(name, ensemble.escalation, turned.top, court) for name in ensemble.names}
        self._watch_words(watched)
        self._watch_breakers()
        self._watch_ladders()

    @property
    def _is_held(self) -> bool:
        return self._wall.num_steps == self._began

    def _watch_words(self, control: Any) -> None:
        judged, served, refused = control.judged, control.served, control.refused

        def watched_judged(lane_id: str, outcome: str) -> None:
            judged(lane_id, outcome)
            for name, laws in self._correctness.items():
                if outcome in ("passed", "failed") and lane_id and self._breakers._lane(name)[0] == lane_id:
                    laws.judged(self._wall.now(), passed=outcome == "passed")

        def watched_served(specialist: str, intent: str) -> None:
            served(specialist, intent)
            self._escalation[specialist].asked(self._wall.now(), served=True)

        def watched_refused(specialist: str, intent: str) -> None:
            refused(specialist, intent)
            self._escalation[specialist].asked(self._wall.now(), served=False)

        control.judged, control.served, control.refused = watched_judged, watched_served, watched_refused

    def _watch_breakers(self) -> None:
        step, breakers = self._breakers._step, self._breakers

        async def watched(specialist: str, now: float) -> None:
            laws = self._correctness.get(specialist)
            if laws is None or not self._is_held:
                await step(specialist, now)
                return
            expected = laws.looks(now)
            await step(specialist, now)
            laws.looked(now, *expected, breakers.standing(specialist).state)

        breakers._step = watched

    def _watch_ladders(self) -> None:
        step, ladders = self._ladders._step, self._ladders

        async def watched(specialist: str, counts: Any, now: float, rules: Any, top: int) -> None:
            if not self._is_held:
                await step(specialist, counts, now, rules, top)
                return
            laws = self._escalation[specialist]
            least = laws.looks(now)
            await step(specialist, counts, now, rules, top)
            laws.looked(now, least, ladders.ladder(specialist).level)

        ladders._step = watched
