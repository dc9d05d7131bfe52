"""Escalation at each specialist, compared with all requests and refusals of the run."""

from collections import deque

from admission.demand import DemandClass
from admission.escalation import KnobSteps
from router.control.demand import DemandOutcome
from tests.simulation.laws.checker import LawChecker
from tests.simulation.laws.dispatch import KnobLevels

_GRAIN = 1.0
"""Resolution of the counts in seconds."""


class EscalationLaws:
    """Checks a specialist's escalation on every request and every control tick. All requests have the same intent, so
    its excess is what the specialist refuses."""

    def __init__(self, name: str, knobs: KnobLevels, checker: LawChecker) -> None:
        self._name = name
        self._knobs = knobs
        self._rules = knobs.rules
        self._checker = checker
        self._requests: deque[tuple[int, DemandClass, DemandOutcome]] = deque()
        self._steps = KnobSteps()
        self._moved: float | None = None
        self._capacity = 0
        """The most requests accepted within the window, since the last step up."""
        self._weather: tuple[str, float] | None = None
        """`hot`, `calm` or `between`, and since when."""

    def asked(self, now: float, kind: DemandClass, outcome: DemandOutcome) -> None:
        self._requests.append((int(now), kind, outcome))

    def looks(self, now: float) -> bool:
        """Return whether a rise is due now. It is if a higher threshold would move a request."""
        self._note(self._now(now), now)
        self._capacity = max(self._capacity, self._counts()[0])
        if self._lasted(now, "hot") < self._rules.sustain or not self._is_settled(now):
            return False
        present = 100 * self._knobs.at(self._steps)[0] if self._steps.threshold else 0
        highest = 100 * self._rules.max_threshold
        can_rise = self._knobs.threshold < self._rules.max_threshold
        return can_rise and any(max(present, 0) <= kind.confidence < highest - 1 for kind in self._asked())

    def looked(self, now: float, must_rise: bool, steps: KnobSteps) -> None:
        require, before = self._checker.require, self._steps
        if steps == before:
            require(not must_rise, "lasting refusals escalate a specialist", self._name, now, steps)
            return
        accepted, refused, _ = self._counts()
        is_up = sum(steps) > sum(before)
        law = "a level changes only after the last change has taken effect"
        require(self._is_settled(now), law, self._name, now, self._moved)
        if is_up:
            law = "only lasting refusals escalate a specialist"
            require(self._lasted(now, "hot") >= self._rules.sustain, law, self._name, now, self._weather)
            floor = self._knobs.at(steps)[1] if steps.floor > before.floor else 0
            withheld = sum(kind.priority < floor for kind in self._asked())
            law = "no floor withholds more requests than are refused"
            require(withheld <= refused, law, self._name, now, withheld, refused)
            self._capacity = accepted
        else:
            withheld_kinds = [kind for _, kind, outcome in self._requests if outcome == "withheld"]
            returning = sum(not self._withholds(steps, kind) for kind in withheld_kinds)
            is_fitting = not returning or accepted + refused + returning <= self._capacity
            is_tried = self._lasted(now, "calm") >= self._rules.relax
            law = "withheld requests return only if they fit or after a lasting calm"
            require(is_fitting or is_tried, law, self._name, now, returning, self._capacity)
        self._checker.see("escalated" if is_up else "relaxed")
        self._steps, self._moved = steps, now
        self._weather = (self._now(now), now)

    def _withholds(self, steps: KnobSteps, kind: DemandClass) -> bool:
        threshold, floor = self._knobs.at(steps)
        return kind.priority < floor or (steps.threshold > 0 and 0 <= kind.confidence < 100 * threshold)

    def _asked(self) -> list[DemandClass]:
        return [kind for _, kind, outcome in self._requests if outcome != "withheld"]

    def _counts(self) -> tuple[int, int, int]:
        """Return the numbers of accepted, refused and withheld requests in the window."""
        outcomes = [outcome for _, _, outcome in self._requests]
        return outcomes.count("accepted"), outcomes.count("refused"), outcomes.count("withheld")

    def _now(self, now: float) -> str:
        while self._requests and self._requests[0][0] < now - self._rules.sustain:
            self._requests.popleft()
        accepted, refused, _ = self._counts()
        total = accepted + refused
        if total >= self._rules.min_requests and refused > self._rules.refused * total:
            return "hot"
        return "calm" if not refused or refused < self._rules.calm * total else "between"

    def _note(self, weather: str, now: float) -> None:
        if self._weather is None or self._weather[0] != weather:
            self._weather = (weather, now)

    def _lasted(self, now: float, weather: str) -> float:
        is_so = self._weather is not None and self._weather[0] == weather
        return now - self._weather[1] if is_so and self._weather is not None else -1.0

    def _is_settled(self, now: float) -> bool:
        return self._moved is None or now - self._moved >= self._rules.sustain + _GRAIN
