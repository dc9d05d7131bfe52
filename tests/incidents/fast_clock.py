"""A faster clock for the overview, so that minutes and hours of history pass in seconds."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pytest import MonkeyPatch

from octet.clock import SystemClock
from router import server
from router.observe.overview import shadow_agreement
from router.observe.overview.overview import Overviews


class FastClock:
    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._clock = SystemClock()
        self._began = self._clock.now()

    def now(self) -> float:
        return self._began + self._factor * (self._clock.now() - self._began)

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds / self._factor)


@contextmanager
def observe_faster(factor: float) -> Iterator[None]:
    """Let time pass faster for the overviews of routers created within the block. Requests still take real time."""
    clock = FastClock(factor)

    def fast_overview(services: Any, fleet: Any, ensemble: Any, _: Any, wall_ms: Any) -> Any:
        return Overviews(services, fleet, ensemble, clock, wall_ms)

    with MonkeyPatch.context() as patch:
        patch.setattr(server, "Overviews", fast_overview)
        for name in ("WINDOW_MS", "_GRAIN_MS"):
            patch.setattr(shadow_agreement, name, getattr(shadow_agreement, name) / factor)
        yield
