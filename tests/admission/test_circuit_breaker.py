"""A breaker never stays open forever, lets one probe through at a time, and waits longer while probes keep failing."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from admission.breakers import CircuitBreaker
from octet.clock import ManualClock

FAILURES, COOL_DOWN, MOST = 3, 1.0, 8.0


class Breakers(RuleBasedStateMachine):
    """Compares a breaker with a simple model that sees the same events."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.breaker = CircuitBreaker(self.clock, failures=FAILURES, cool_down=COOL_DOWN, max_cool_down=MOST)
        self.in_a_row = 0
        self.opened: float | None = None
        self.cool_down = COOL_DOWN
        self.probed: float | None = None

    @rule(seconds=st.floats(0.0, 20.0))
    def time_passes(self, seconds: float) -> None:
        self.clock.sleep(seconds)

    @rule()
    def a_success(self) -> None:
        self.breaker.succeeded()
        self.in_a_row, self.opened, self.cool_down, self.probed = 0, None, COOL_DOWN, None

    @rule()
    def a_failure(self) -> None:
        state = self.expected()
        self.breaker.failed()
        if state == "closed":
            self.in_a_row += 1
            if self.in_a_row == FAILURES:
                self.opened, self.probed = self.clock.now(), None
        elif state == "half_open":
            self.cool_down = min(2 * self.cool_down, MOST)
            self.opened, self.probed = self.clock.now(), None

    @rule()
    def trip(self) -> None:
        state = self.expected()
        self.breaker.trip()
        if state == "half_open":
            self.cool_down = min(2 * self.cool_down, MOST)
        if state != "open":
            self.opened, self.probed = self.clock.now(), None

    @rule()
    def probe_now(self) -> None:
        self.breaker.probe_now()
        if self.expected() == "open":
            self.opened = self.clock.now() - 2 * self.cool_down
        assert self.breaker.would_allow or self.probed is not None

    @rule()
    def ask(self) -> None:
        state = self.expected()
        probing = self.probed is not None and self.clock.now() - self.probed < self.cool_down
        allowed = state == "closed" or (state == "half_open" and not probing)
        assert self.breaker.would_allow == allowed
        assert self.breaker.allow() == allowed
        if allowed and state == "half_open":
            self.probed = self.clock.now()

    @precondition(lambda self: self.probed is not None)
    @rule()
    def probe_is_inconclusive(self) -> None:
        self.breaker.gave_up()
        self.probed = None
        assert self.breaker.would_allow == (self.expected() != "open")

    def expected(self) -> str:
        if self.opened is None:
            return "closed"
        return "open" if self.clock.now() - self.opened < self.cool_down else "half_open"

    @invariant()
    def state_matches_the_model(self) -> None:
        assert self.breaker.state == self.expected()

    def teardown(self) -> None:
        """After twice the longest cool-down a call is allowed, whatever happened before."""
        self.clock.sleep(2 * MOST)
        assert self.breaker.allow()


TestBreakers = Breakers.TestCase


def test_callee_that_hangs_again_before_its_probe_waits_longer_every_time() -> None:
    clock = ManualClock()
    breaker = CircuitBreaker(clock, failures=FAILURES, cool_down=COOL_DOWN, max_cool_down=MOST)
    breaker.trip()
    for cool_down in (2.0, 4.0, 8.0, 8.0):
        breaker.probe_now()
        assert breaker.would_allow
        breaker.trip()
        clock.sleep(cool_down - 0.01)
        assert breaker.state == "open"


@pytest.mark.parametrize(
    ("failures", "cool_down", "most"), [(0, 1.0, 2.0), (1, 0.0, 2.0), (1, 3.0, 2.0), (1, float("nan"), 2.0)]
)
def test_invalid_figures_are_refused(failures: int, cool_down: float, most: float) -> None:
    with pytest.raises(ValueError):
        CircuitBreaker(ManualClock(), failures=failures, cool_down=cool_down, max_cool_down=most)
