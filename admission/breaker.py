"""Whether something that failed is asked again: closed, open, then one probe at a time."""

from math import inf
from typing import Literal

from octet.clock import Clock

State = Literal["closed", "open", "half_open"]


class Breaker:
    """Opens after so many failures in a row and lets one probe through after a cool-down, which doubles with every
    probe that fails and starts anew once one succeeds."""

    def __init__(self, clock: Clock, *, failures: int, cool_down: float, max_cool_down: float) -> None:
        if failures < 1:
            raise ValueError(f"failures must be at least 1, got {failures}")
        if not 0 < cool_down <= max_cool_down:
            raise ValueError(f"cool_down must be in (0, {max_cool_down:g}] seconds, got {cool_down:g}")
        self._clock = clock
        self._most_failures = failures
        self._first_cool_down = cool_down
        self._max_cool_down = max_cool_down
        self._num_failures = 0
        self._cool_down = cool_down
        self._opened: float | None = None
        self._probed: float | None = None
        """When the probe under way was let through."""

    @property
    def state(self) -> State:
        if self._opened is None:
            return "closed"
        return "open" if self._clock.now() - self._opened < self._cool_down else "half_open"

    @property
    def would_allow(self) -> bool:
        """What `allow` would say now."""
        state = self.state
        return state == "closed" or (state == "half_open" and not self._is_probing)

    def allow(self) -> bool:
        """Whether a call may go out now. In half-open it is the probe, and whoever was let through says how it went:
        `succeeded`, `failed` or `gave_up`. One that never does holds up the next for one cool-down."""
        if not self.would_allow:
            return False
        if self._opened is not None:
            self._probed = self._clock.now()
        return True

    def succeeded(self) -> None:
        self._num_failures = 0
        self._cool_down = self._first_cool_down
        self._opened = self._probed = None

    def failed(self) -> None:
        state = self.state
        if state == "closed":
            self._num_failures += 1
            if self._num_failures >= self._most_failures:
                self.trip()
        elif state == "half_open":
            self._open_longer()

    def gave_up(self) -> None:
        """The call ended without showing anything: the next one may be the probe."""
        self._probed = None

    def stirs(self) -> None:
        """What it stands before gives a sign of life: one that is open lets a probe through now."""
        if self.state == "open":
            self._opened = -inf

    def trip(self) -> None:
        """Opens at once: there is no doubt. One that is open already stays as it is; one that is half open opens again,
        and for longer, as if its probe had failed."""
        state = self.state
        if state == "closed":
            self._open()
        elif state == "half_open":
            self._open_longer()

    def _open_longer(self) -> None:
        self._cool_down = min(self._cool_down * 2, self._max_cool_down)
        self._open()

    def _open(self) -> None:
        self._opened = self._clock.now()
        self._probed = None

    @property
    def _is_probing(self) -> bool:
        return self._probed is not None and self._clock.now() - self._probed < self._cool_down
