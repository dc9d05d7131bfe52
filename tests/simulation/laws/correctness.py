"""Correctness breakers, compared with all evaluations of the run."""

from octet.config.ensemble import CorrectnessConfig
from tests.simulation.laws.checker import LawChecker


class WindowCounts:
    """Good and bad events by whole second. An event counts while its second is at most `span` seconds old."""

    def __init__(self, span: float) -> None:
        self._span = span
        self._all: list[tuple[int, bool]] = []

    def add(self, now: float, *, good: bool) -> None:
        self._all.append((int(now), good))

    def at(self, now: float) -> tuple[int, int]:
        """Return the number of good events, and of all events, in the window."""
        found = [good for second, good in self._all if now - self._span <= second <= now + self._span]
        return sum(found), len(found)


_EDGES = {
    ("closed", "shadow_only"),
    ("shadow_only", "recovering"),
    ("recovering", "closed"),
    ("recovering", "shadow_only"),
}


class CorrectnessLaws:
    """Checks a specialist's correctness breaker. It is called for every verdict and at every control tick."""

    def __init__(self, name: str, rules: CorrectnessConfig, floor: float, checker: LawChecker) -> None:
        self._name = name
        self._rules = rules
        self._floor = floor
        self._checker = checker
        self._verdicts = WindowCounts(rules.window)
        self._state = "closed"
        self._changed: float | None = None
        self._side: tuple[bool, float] | None = None
        """Whether the last known rate was below the floor, and since when it has been on this side."""

    def judged(self, now: float, *, passed: bool) -> None:
        self._verdicts.add(now, good=passed)

    def looks(self, now: float) -> tuple[int, str]:
        """Return the number of verdicts in the window, and the state that the breaker must have now."""
        good, total = self._verdicts.at(now)
        if total < self._rules.min_samples:
            return total, self._state
        is_below = good / total < self._floor
        self._note(is_below, now)
        return total, self._following(is_below, now)

    def looked(self, now: float, total: int, expected: str, state: str) -> None:
        """Compare the breaker's state with the expected one."""
        if state == self._state:
            self._require(state == expected, "a correctness breaker follows its verdicts", now, expected)
            return
        is_below = self._side is not None and self._side[0]
        self._require((self._state, state) in _EDGES, "a correctness breaker moves along its edges", now, state)
        self._require(total >= self._rules.min_samples, "few samples never move a correctness breaker", now, total)
        is_settled = self._changed is None or now - self._changed >= self._rules.window
        self._require(is_settled, "a correctness breaker moves at most once a window", now, self._changed)
        if state == "shadow_only":
            lasted = is_below and self._lasted(now) >= self._rules.breach
            self._require(lasted, "only a lasting breach demotes a specialist", now, self._side)
        else:
            law = "a specialist returns only after a whole window at its floor"
            lasted = state == "recovering" or self._lasted(now) >= self._rules.window
            self._require(not is_below and lasted, law, now, self._side)
        self._checker.see(f"correctness: {state}")
        self._state, self._changed = state, now
        self._side = (False, now) if state == "recovering" else None

    def _note(self, is_below: bool, now: float) -> None:
        if self._state == "shadow_only":
            self._side = (is_below, now)
            return
        wait = self._rules.breach if is_below else self._rules.window
        longest = max(wait, self._rules.window) + self._rules.window
        if self._side is None or self._side[0] != is_below or self._lasted(now) > longest:
            self._side = (is_below, now)

    def _following(self, is_below: bool, now: float) -> str:
        rules = self._rules
        if self._changed is not None and now - self._changed < rules.window:
            return self._state
        if self._state == "shadow_only":
            return "shadow_only" if is_below else "recovering"
        if is_below:
            return "shadow_only" if self._lasted(now) >= rules.breach else self._state
        return "closed" if self._state == "recovering" and self._lasted(now) >= rules.window else self._state

    def _lasted(self, now: float) -> float:
        return 0.0 if self._side is None else now - self._side[1]

    def _require(self, holds: bool, law: str, *about: object) -> None:
        self._checker.require(holds, law, self._name, self._state, *about)
