"""Overviews built from fake sources, on manual clocks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from octet.clock import ManualClock
from octet.config.ensemble import Ensemble, SpecialistConfig
from octet.v1 import inference_pb2, specialist_pb2
from octet.v1 import operator_pb2 as wire
from router.control.control import OperatorEvents
from router.observe.overview.overview import Overviews
from router.observe.overview.shadow_agreement import ShadowAgreement
from router.request import Request, TraceContext
from router.routing.dispatch_plan import FleetStatus

START_MS = 1_700_000_000_000
ASK = Request("r", (), "", 0.0, 1.0, TraceContext("0" * 32, ""))


def ensemble_of(*names: str, **settings: Any) -> Ensemble:
    return Ensemble(specialists=tuple(SpecialistConfig(name, describe=f"about {name}") for name in names), **settings)


@dataclass
class FakeControl:
    """A control plane in which every specialist serves and no operator has changed anything."""

    ensemble: Ensemble
    num_replicas: int = 2
    store_trouble: str = ""
    events: OperatorEvents = field(default_factory=OperatorEvents)
    statuses: dict[str, str] = field(default_factory=dict)
    """The statuses of those replicas that do not serve."""
    breaker_changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    turned: list[wire.KnobInfo] = field(default_factory=list)
    entries: list[wire.AuditEntry] = field(default_factory=list)
    num_looks: int = 0

    @property
    def fleet_status(self) -> FleetStatus:
        return FleetStatus.initial(self.ensemble)

    def breakers(self) -> list[wire.BreakerInfo]:
        self.num_looks += 1
        return [self._breaker(name) for name in self.ensemble.names]

    def knobs(self) -> list[wire.KnobInfo]:
        return [wire.KnobInfo(name="unspecified.priority_floor", set_by="configuration"), *self.turned]

    def lanes(self, specialist: str = "") -> list[wire.LaneInfo]:
        return [
            wire.LaneInfo(specialist=name, number=number, status=status)
            for name in self.ensemble.names
            for number, status in enumerate(("retired", "previous", "serving"))
        ]

    def replicas(self) -> list[wire.ReplicaInfo]:
        return [
            wire.ReplicaInfo(
                name=f"{name}-{index}", specialist=name, status=self.statuses.get(f"{name}-{index}", "serving")
            )
            for name in self.ensemble.names
            for index in range(self.num_replicas)
        ]

    async def audit(self, most: int, subject: str) -> Sequence[wire.AuditEntry]:
        return sorted(self.entries, key=lambda entry: -entry.number)[:most]

    def _breaker(self, name: str) -> wire.BreakerInfo:
        usual = {"state": "closed", "min_samples": 20, "lane_status": "serving"}
        return wire.BreakerInfo(specialist=name, **{**usual, **self.breaker_changes.get(name, {})})


@dataclass
class FakeSlos:
    found: list[wire.Slo] = field(default_factory=list)

    def all(self) -> list[wire.Slo]:
        return self.found


@dataclass
class FakeFleet:
    loads: dict[str, specialist_pb2.LoadReport]

    @property
    def replicas(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name, is_connected=True, report=load) for name, load in self.loads.items()]


@dataclass
class OverviewHarness:
    view: Overviews
    control: FakeControl
    clock: ManualClock
    loads: dict[str, specialist_pb2.LoadReport]
    slos: FakeSlos
    wall: list[int]

    def pass_time(self, seconds: float) -> None:
        self.clock.sleep(seconds)
        self.wall[0] += round(seconds * 1000)

    def overview(self) -> wire.Overview:
        return self.view.now().overview


def make_overviews(*names: str, num_replicas: int = 2, most_watchers: int = 32, **settings: Any) -> OverviewHarness:
    """Return a harness for overviews of these specialists, by default `debug` and `stl`."""
    ensemble = ensemble_of(*(names or ("debug", "stl")), **settings)
    clock, wall = ManualClock(), [START_MS]
    control, slos = FakeControl(ensemble, num_replicas), FakeSlos()
    loads: dict[str, specialist_pb2.LoadReport] = {}
    services = SimpleNamespace(
        control=control, slos=slos, shadow_counts=wire.ShadowCounts, agreement=ShadowAgreement(lambda: wall[0])
    )
    view = Overviews(
        cast(Any, services), cast(Any, FakeFleet(loads)), ensemble, clock, lambda: wall[0], lambda: 0.0, most_watchers
    )
    return OverviewHarness(view, control, clock, loads, slos, wall)


def receipt_of(
    specialist: str = "debug", reason: int = 0, *, request_id: str = "r", tokens: int = 0, **between: Any
) -> inference_pb2.Receipt:
    """Return a receipt. `reason` 0 means that the request was answered."""
    receipt = inference_pb2.Receipt(request_id=request_id, specialist="" if reason else specialist)
    receipt.decision.primary = specialist
    receipt.usage.completion_tokens = tokens
    if reason:
        receipt.error.reason = reason  # type: ignore[assignment]
    if between:
        receipt.between.CopyFrom(inference_pb2.Between(**between))
    return receipt
