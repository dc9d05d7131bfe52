"""Clocks on simulated time."""

from bench.simulation.heap_loop import HeapLoop


class LoopClock:
    """What everybody on the event loop looks at."""

    def __init__(self, loop: HeapLoop) -> None:
        self.now = loop.time

    def sleep(self, seconds: float) -> None:
        raise RuntimeError(f"{seconds} s of sleep would stop everybody")


class EngineClock:
    """An engine's: it sleeps while it computes. The time is not spent here; whoever lets it compute spends it."""

    def __init__(self, loop: HeapLoop) -> None:
        self.now = loop.time
        self._slept = 0.0

    def sleep(self, seconds: float) -> None:
        self._slept += seconds

    def take(self) -> float:
        """Seconds slept since the last time."""
        slept, self._slept = self._slept, 0.0
        return slept


class Wall:
    """Unix time, which somebody may set."""

    START = 1_700_000_000.0

    def __init__(self, loop: HeapLoop) -> None:
        self._loop = loop
        self._offset = self.START - loop.time()
        self.num_steps = 0
        """How often it was set."""

    def now(self) -> float:
        return self._loop.time() + self._offset

    def now_ms(self) -> int:
        return int(self.now() * 1000)

    def step(self, seconds: float) -> None:
        self._offset += seconds
        self.num_steps += 1
