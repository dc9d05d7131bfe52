"""Laws of the breakers and the escalation of every specialist, checked at every control tick."""

from typing import Any

from admission.demand import DemandClass
from admission.escalation import EscalationMove, EscalationView
from admission.knobs import UNSPECIFIED_INTENT
from octet.config.ensemble import Ensemble
from router.control.control import ControlPlane
from router.control.demand import DemandOutcome
from simulation.event_loop import WallClock
from tests.simulation.laws.checker import LawChecker
from tests.simulation.laws.correctness import CorrectnessLaws
from tests.simulation.laws.dispatch import KnobLevels
from tests.simulation.laws.escalation import EscalationLaws


class ControlLaws:
    """Checks the laws of the control plane. They use the wall clock, and are no longer checked once a fault has
    changed it."""

    def __init__(
        self, ensemble: Ensemble, knob_levels: KnobLevels, control: ControlPlane, wall: WallClock, checker: LawChecker
    ) -> None:
        self._wall = wall
        self._began = wall.num_steps
        watched: Any = control
        self._breakers: Any = watched._breakers
        self._controller: Any = watched._escalation
        self._serving_lane: Any = watched._state.serving_lane
        self._correctness = {
            each.name: CorrectnessLaws(each.name, ensemble.correctness, each.floor, checker)
            for each in ensemble.specialists
            if isinstance(each.floor, float)
        }
        self._escalation = {name: EscalationLaws(name, knob_levels, checker) for name in ensemble.names}
        self._watch_words(watched)
        self._watch_breakers()
        self._watch_escalation()

    @property
    def _is_held(self) -> bool:
        return self._wall.num_steps == self._began

    def _watch_words(self, control: Any) -> None:
        judged, record = control.record_outcome, control.record_demand

        def watched_judged(lane_id: str, outcome: str, verifier: str = "") -> None:
            judged(lane_id, outcome, verifier)
            for name, laws in self._correctness.items():
                if outcome in ("passed", "failed") and lane_id and self._serving_lane(name)[0] == lane_id:
                    laws.judged(self._wall.now(), passed=outcome == "passed")

        def watched_record(specialist: str, intent: str, kind: DemandClass, outcome: DemandOutcome) -> None:
            record(specialist, intent, kind, outcome)
            self._escalation[specialist].asked(self._wall.now(), kind, outcome)

        control.record_outcome, control.record_demand = watched_judged, watched_record

    def _watch_breakers(self) -> None:
        step, breakers = self._breakers._advance, self._breakers

        async def watched(specialist: str, now: float) -> None:
            laws = self._correctness.get(specialist)
            if laws is None or not self._is_held:
                await step(specialist, now)
                return
            expected = laws.looks(now)
            await step(specialist, now)
            laws.looked(now, *expected, breakers.record(specialist).state)

        breakers._advance = watched

    def _watch_escalation(self) -> None:
        step, controller = self._controller._advance, self._controller

        async def watched(specialist: str, view: EscalationView, now: float) -> EscalationMove | None:
            laws = self._escalation[specialist]
            must_rise = laws.looks(now) if self._is_held else False
            move: EscalationMove | None = await step(specialist, view, now)
            if self._is_held:
                laws.looked(now, must_rise, controller.ladder(UNSPECIFIED_INTENT, specialist).steps)
            return move

        controller._advance = watched
