"""A router that measures ended requests."""

from collections.abc import Sequence
from dataclasses import replace

from octet.clock import ManualClock
from octet.config.ensemble import Ensemble, SloConfig, SloTargets, SpecialistConfig
from octet.v1 import inference_pb2 as wire
from octet.v1 import operator_pb2
from router.quality.slo import CACHE_SECONDS, SloTracker
from router.request import Request, TraceContext

START = 1_790_000_000.0
TARGETS = SloTargets(ttft_p50=0.1, ttft_p95=0.5, itl_p95=0.05, admission_to_first_token_p95=0.4)
SLO = SloConfig(window=60.0, long_window=600.0)
ENSEMBLE = Ensemble(
    specialists=(SpecialistConfig("writer", slo=TARGETS, floor=0.9), SpecialistConfig("critic")), slo=SLO
)
ASK = Request("id", (wire.Message(role="user", content="x"),), "x", 100.0, 130.0, TraceContext("f" * 32, "e" * 16))


class Router:
    """A router whose wall clock may differ from those of other routers."""

    def __init__(self, ensemble: Ensemble = ENSEMBLE, breakers: Sequence[operator_pb2.BreakerInfo] = ()) -> None:
        self.clock = ManualClock()
        self.ahead = 0.0
        self.slos = SloTracker(ensemble, lambda: breakers, self.clock, self.wall)

    def wall(self) -> float:
        return START + self.clock.now() + self.ahead

    def answers(self, ttft: float, *, specialist: str = "writer", admission: float = 0.01, preempted: int = 0) -> None:
        receipt = wire.Receipt(specialist=specialist, usage=wire.Usage(times_preempted=preempted))
        receipt.timings.accepted, receipt.timings.first_chunk = ttft - admission, ttft
        self.slos.began(specialist, ttft, admission)
        self.slos.ended(ASK, receipt)

    def fails(
        self, reason: int, waited: float = 0.01, given: float = 30.0, accepted: float | None = None, **fields: object
    ) -> None:
        receipt = wire.Receipt(
            **{"specialist": "writer", "error": wire.Error(reason=reason), **fields}  # type: ignore[arg-type]
        )
        receipt.timings.total = waited
        if accepted is not None:
            receipt.timings.accepted = accepted
        self.slos.ended(replace(ASK, deadline=ASK.arrival + given), receipt)

    def objective(self, name: str, specialist: str = "writer") -> operator_pb2.Objective:
        objectives = self.published(specialist).objectives
        found: operator_pb2.Objective = next(each for each in objectives if each.name == name)
        return found

    def published(self, specialist: str = "writer") -> operator_pb2.Slo:
        """Return the figures that are published once the cache has expired."""
        self.clock.sleep(CACHE_SECONDS)
        return self.slos.of(specialist)
