"""A control plane with a real store and a manual clock."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from admission.demand import DemandClass
from octet.clock import ManualClock
from octet.config.ensemble import (
    CorrectnessConfig,
    Ensemble,
    EscalationConfig,
    IntentConfig,
    LanesConfig,
    ShadowConfig,
    SpecialistConfig,
)
from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2
from router.control.control import ControlPlane
from router.routing.dispatch_plan import SpecialistStatus
from router.store.connection import DatabaseConnection, DatabaseOpener, DatabaseRow, StoreConnectionLost
from router.store.store import Store
from tests.router.control.fake_replicas import FakeReplica, FakeReplicas
from tests.router.store.stores import eventually, make_store

NOW = 1_700_000_000.0
WINDOW, BREACH = 100.0, 10.0
ENSEMBLE = Ensemble(
    specialists=(
        SpecialistConfig("algo", fallback="stl", floor=0.5),
        SpecialistConfig("stl", fallback="algo", floor=0.5, use_adapters=("std",), adapters={"std": "/std"}),
        SpecialistConfig("debug"),
    ),
    intents=(IntentConfig("codegen", shadow_threshold=0.3), IntentConfig("review", priority_floor=2)),
    correctness=CorrectnessConfig(window=WINDOW, breach=BREACH, min_samples=10),
    shadow=ShadowConfig(),
    lanes=LanesConfig(min_samples=20),
    escalation=EscalationConfig(sustain=5.0, relax=20.0, min_requests=10, threshold_step=0.3, max_threshold=0.9),
)


UNSURE = DemandClass(5, 20)  # a request that escalation moves at the first step


class DatabaseLink:
    """A connection to the database that tests can break."""

    def __init__(self) -> None:
        self.is_broken = False

    def check(self) -> None:
        if self.is_broken:
            raise StoreConnectionLost("the link is broken")

    def wrap(self, opener: DatabaseOpener) -> DatabaseOpener:
        return _LinkedOpener(opener, self)


class _LinkedOpener:
    def __init__(self, opener: DatabaseOpener, link: DatabaseLink) -> None:
        self.name = opener.name
        self._opener = opener
        self._link = link

    def open(self) -> DatabaseConnection:
        self._link.check()
        return _LinkedConnection(self._opener.open(), self._link)


class _LinkedConnection:
    def __init__(self, connection: DatabaseConnection, link: DatabaseLink) -> None:
        self._connection = connection
        self._link = link
        self.blob = connection.blob
        self.has_tables = connection.has_tables
        self.commit, self.rollback = connection.commit, connection.rollback
        self.close, self.abort = connection.close, connection.abort
        self.execute_each = connection.execute_each
        self.begin_reading = connection.begin_reading

    def begin(self) -> None:
        self._link.check()
        self._connection.begin()

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[DatabaseRow]:
        self._link.check()
        return self._connection.execute(sql, values)


class FakeWallClock:
    """Unix time that tests advance."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW)

    def __call__(self) -> float:
        return self.clock.now()


def make_replicas(ensemble: Ensemble, replicas: int = 1) -> FakeReplicas:
    """Return replicas that hold the configured adapters."""
    return FakeReplicas(
        *(
            FakeReplica(f"{each.name}-{index}", each.name, adapters={name: f"{name}-content" for name in each.adapters})
            for each in ensemble.specialists
            for index in range(replicas)
        )
    )


@dataclass
class ControlHarness:
    """The control plane of one router."""

    control: ControlPlane
    store: Store
    replicas: FakeReplicas
    wall: FakeWallClock

    async def tick(self, seconds: float = 1.0) -> None:
        self.wall.clock.sleep(seconds)
        await self.control.tick(self.wall())
        self.control._adapters.sync()

    async def run(self, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Tick once per simulated second, and call `meanwhile` before each tick."""
        for _ in range(round(seconds)):
            meanwhile()
            await self.tick()

    def judge(self, specialist: str, passed: int, failed: int, candidate: bool = False) -> None:
        status = self.control.fleet_status.specialists[specialist]
        lane = status.candidate if candidate else status.lane
        assert lane is not None and lane.lane_id
        for _ in range(passed):
            self.control.record_outcome(lane.lane_id, "passed")
        for _ in range(failed):
            self.control.record_outcome(lane.lane_id, "failed")

    def status(self, specialist: str) -> SpecialistStatus:
        return self.control.fleet_status.specialists[specialist]

    def shown(self, specialist: str) -> str:
        return self.control.fleet_status.specialists[specialist].correctness

    async def changes_of(self, subject: str = "") -> list[str]:
        """Return the kinds of all audited changes, oldest first."""
        await eventually(lambda: not self.control.store_trouble)
        return [entry.what for entry in reversed(await self.control.audit(10_000, subject))]


@asynccontextmanager
async def running_control(
    where: Path | str,
    *,
    ensemble: Ensemble = ENSEMBLE,
    replicas: FakeReplicas | None = None,
    wall: FakeWallClock | None = None,
    link: DatabaseLink | None = None,
    with_tasks: bool = False,
) -> AsyncIterator[ControlHarness]:
    """Run a control plane. `where` is a SQLite file or a store's URL."""
    wall = wall or FakeWallClock()
    wrap = (lambda opener: opener) if link is None else link.wrap
    url = where if isinstance(where, str) else f"sqlite:{where}"
    store = make_store(url, ensemble=ensemble.name, wrap=wrap, wall=wall)
    replicas = replicas or make_replicas(ensemble)
    tokens = count(1)
    control = ControlPlane(ensemble, store, replicas, wall=wall, clock=wall.clock, token=lambda: f"{next(tokens):04x}")
    await control.start(with_tasks=with_tasks)
    harness = ControlHarness(control, store, replicas, wall)
    try:
        if not with_tasks:
            await harness.tick()
        yield harness
    finally:
        await control.close()


def changed(**changes: Any) -> Ensemble:
    return replace(ENSEMBLE, **changes)


def reason_of(refusal: Refusal) -> str:
    return str(error_pb2.ErrorReason.Name(refusal.error.reason)).removeprefix("ERROR_REASON_")


SIGNED = {"who": "ann", "why": "because"}
