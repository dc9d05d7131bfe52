"""Health breakers, compared with an independent model of each that gets the same outcomes."""

import asyncio
from math import inf
from typing import Any

from admission.breakers import CircuitBreaker
from octet.clock import Clock
from tests.simulation.laws.checker import LawChecker

_EDGES = {
    ("closed", "open"),
    ("open", "half_open"),
    ("open", "closed"),
    ("half_open", "closed"),
    ("half_open", "open"),
}


class BreakerLaws:
    """Compares a health breaker with a model of it. The model opens after `failures` failures in a row, or at once when
    the replica is lost. After a cool-down, or when the replica shows a sign of life, it is half-open and allows one
    probe at a time. Any success closes it. A failure or loss while it is half-open opens it again, for twice as long,
    but at most for `most` seconds."""

    def __init__(
        self,
        name: str,
        breaker: CircuitBreaker,
        clock: Clock,
        checker: LawChecker,
        *,
        failures: int,
        first: float,
        most: float,
    ) -> None:
        self._name = name
        self._breaker = breaker
        self._clock = clock
        self._checker = checker
        self._failures = failures
        self._first, self._most = first, most
        self._cool_down = first
        self._in_a_row = 0
        self._opened: float | None = None
        self._probed: float | None = None
        self._last = "closed"
        self._is_inside = False
        watched: Any = breaker
        for method in ("succeeded", "failed", "trip", "gave_up", "probe_now"):
            setattr(watched, method, self._watched(method, getattr(breaker, method)))
        allow = breaker.allow

        def watched_allow() -> bool:
            expected = self._would_allow()
            allowed = allow()
            checker.require(allowed == expected, "one probe at a time, and none too early", name, allowed)
            if allowed and self._opened is not None:
                self._probed = clock.now()
                checker.see("probe")
            self._compare("allow")
            return allowed

        watched.allow = watched_allow

    def _watched(self, method: str, call: Any) -> Any:
        def watched() -> None:
            task = asyncio.current_task()
            is_shadow = task is not None and task.get_name().startswith("shadow at ")
            self._checker.require(not is_shadow, "no breaker counts a shadow", self._name, method)
            if self._is_inside:  # The breaker calls its own method.
                call()
                return
            self._is_inside = True
            try:
                self._look(method)
                getattr(self, f"_{method}")()
                call()
                self._compare(method)
            finally:
                self._is_inside = False

        return watched

    def _state(self) -> str:
        if self._opened is None:
            return "closed"
        return "open" if self._clock.now() - self._opened < self._cool_down else "half_open"

    def _would_allow(self) -> bool:
        state = self._state()
        is_probing = self._probed is not None and self._clock.now() - self._probed < self._cool_down
        return state == "closed" or (state == "half_open" and not is_probing)

    def _succeeded(self) -> None:
        self._in_a_row, self._cool_down = 0, self._first
        self._opened = self._probed = None

    def _failed(self) -> None:
        state = self._state()
        if state == "closed":
            self._in_a_row += 1
            if self._in_a_row >= self._failures:
                self._trip()
        elif state == "half_open":
            self._reopened()

    def _trip(self) -> None:
        state = self._state()
        if state == "closed":
            self._opened, self._probed = self._clock.now(), None
        elif state == "half_open":
            self._reopened()

    def _reopened(self) -> None:
        self._cool_down = min(2 * self._cool_down, self._most)
        self._opened, self._probed = self._clock.now(), None

    def _gave_up(self) -> None:
        self._probed = None

    def _probe_now(self) -> None:
        if self._state() == "open":
            self._opened = -inf

    def _look(self, why: str) -> None:
        """Check and record a change of the breaker's state since the last check."""
        state = self._breaker.state
        if state != self._last:
            edge = (self._last, state)
            self._checker.require(edge in _EDGES, "a breaker moves along its edges", self._name, why, edge)
            self._checker.note(f"{self._name} {self._last} -> {state}")
            self._checker.see(f"breaker {state}")
            self._last = state

    def _compare(self, why: str) -> None:
        expected, state = self._state(), self._breaker.state
        self._checker.require(state == expected, "a breaker follows its events", self._name, why, state, expected)
        self._look(why)
