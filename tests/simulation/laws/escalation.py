"""Escalation of each specialist, compared with all requests and refusals of the run."""

from octet.config.ensemble import EscalationConfig
from tests.simulation.laws.checker import LawChecker
from tests.simulation.laws.correctness import WindowCounts

_GRAIN = 1.0
"""Resolution of the counts in seconds."""


class EscalationLaws:
    """Checks a specialist's escalation on every accepted or refused request and every control tick."""

    def __init__(self, name: str, rules: EscalationConfig, top: int, checker: LawChecker) -> None:
        self._name = name
        self._rules = rules
        self._top = top
        self._checker = checker
        self._requests = WindowCounts(rules.sustain)
        self._level = 0
        self._moved: float | None = None
        self._weather: tuple[str, float] | None = None
        """`hot`, `calm` or `between`, and since when."""

    def asked(self, now: float, *, served: bool) -> None:
        self._requests.add(now, good=served)

    def looks(self, now: float) -> int:
        """Return one above the last level if a rise is due now, and the last level otherwise."""
        self._note(self._now(now), now)
        is_due = self._lasted(now, "hot") >= self._rules.sustain and self._is_settled(now) and self._level < self._top
        return self._level + is_due

    def looked(self, now: float, least: int, level: int) -> None:
        require, before = self._checker.require, self._level
        if level == before:
            require(level >= least, "lasting refusals escalate a specialist", self._name, now, level)
            return
        require(abs(level - before) == 1, "escalation moves one level at a time", self._name, now, before, level)
        require(
            self._is_settled(now),
            "a level changes only after the last change has taken effect",
            self._name,
            now,
            self._moved,
        )
        if level > before:
            law = "only lasting refusals escalate a specialist"
            require(self._lasted(now, "hot") >= self._rules.sustain, law, self._name, now, self._weather)
        else:
            law = "a level is released only after a lasting calm"
            require(self._lasted(now, "calm") >= self._rules.relax, law, self._name, now, self._weather)
        self._checker.see("escalated" if level > before else "relaxed")
        self._level, self._moved = level, now
        self._weather = (self._now(now), now)

    def _now(self, now: float) -> str:
        served, total = self._requests.at(now)
        refused = total - served
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
