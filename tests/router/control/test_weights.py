"""Refreshes of weights, with the real control plane and the supervisor's real process table, killed at any moment."""

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.lanes import LaneUpdate, SpecialistLanes
from admission.refresh import weights_failed
from octet.config.ensemble import Ensemble, LanesConfig, SpecialistConfig
from octet.rpc.refusal import Refusal
from octet.supervisor.placement import ReplicaPlacement, place_replicas
from octet.supervisor.process import ProcessSpec
from octet.supervisor.supervisor import Supervisor
from octet.supervisor.weights import RUNNING_FILE, WANTED_FILE, WantedWeights, WeightsFile, wanted_to_json
from octet.supervisor.weights_processes import WeightsProcesses
from router.control.control import ControlPlane
from router.control.lanes import GRACE_SECONDS, STARTING_SECONDS
from router.control.weights import UNUSED_SECONDS
from tests.patience import PATIENCE
from tests.router.control.fake_replicas import FakeReplica, FakeReplicas
from tests.router.control.harness import SIGNED, FakeWallClock, reason_of
from tests.router.store.stores import make_store

NAME = "algo"
CONTENTS = {"/first": "r1", "/second": "r2", "/third": "r3", "/broken": ""}
"""The revision of each model; an empty one cannot be started."""
ENSEMBLE = Ensemble(specialists=(SpecialistConfig(NAME, model="/first", floor=0.5),), lanes=LanesConfig(min_samples=12))


class FakeProcess:
    def __init__(self, spec: ProcessSpec) -> None:
        self.spec, self.name = spec, spec.name
        self.was_ready = self.is_retired = False


class FakeSupervisor:
    """The table of processes of a supervisor. Processes start and stop when the test says so."""

    def __init__(self) -> None:
        self.processes: list[FakeProcess] = []
        self.failed_starts: dict[str, str] = {}

    def can_add(self, name: str) -> bool:
        return all(each.name != name for each in self.processes)

    def add(self, spec: ProcessSpec) -> None:
        assert self.can_add(spec.name)
        self.processes.append(FakeProcess(spec))

    def retire(self, name: str) -> None:
        for each in self.processes:
            each.is_retired = each.is_retired or each.name == name


class PlacedReplicas(FakeReplicas):
    def __init__(self) -> None:
        super().__init__(FakeReplica("algo-0", NAME, revision=""))
        self.placed: list[int] = [0]

    def place(self, specialist: str, weights: Any) -> None:
        self.placed = list(weights)

    def observe(self) -> Any:
        return [replace(each, weights=_number(each.name)) for each in super().observe()]


def _number(name: str) -> int:
    return int(name.partition(".")[2] or 0)


class Site:
    """One machine: a supervisor, its replicas and a router, each of which can be killed and started again."""

    def __init__(self, folder: Path, name: str = "", wall: FakeWallClock | None = None) -> None:
        """Sites of different names in one folder share a store."""
        self.folder, self.name, self.wall = folder, name, wall or FakeWallClock()
        self.contents = dict(CONTENTS)
        self.replicas = PlacedReplicas()
        self.dead: set[str] = set()
        self.runs = 0
        self.ensemble = ENSEMBLE
        self.control: ControlPlane | None = None
        self.task: asyncio.Task[Any] | None = None

    async def serve(self) -> None:
        """Start `octet serve` with the weights that the store remembers."""
        from router.control.weights import remembered_weights

        self.leave()
        self.runs += 1
        self.runtime = self.folder / f"run{self.name}{self.runs}"
        self.runtime.mkdir()
        url = f"sqlite:{self.folder / 'state.db'}"
        self.ensemble = replace(ENSEMBLE, store=replace(ENSEMBLE.store, url=url))
        remembered = remembered_weights(self.ensemble)
        config = self.ensemble.specialist(NAME)
        placement = ReplicaPlacement(NAME, config, self.runtime / "0-algo.sock")
        self.supervisor = FakeSupervisor()
        self.weights = WeightsProcesses(self.runtime, [placement], remembered)
        base = [ProcessSpec(each.name, fork=_never, stage=0) for each in self.weights.configured()]
        self.specs = {spec.name: "/first" for spec in base}
        for spec in self.weights.processes(base, self._make):
            self.supervisor.add(spec)
        self.replicas.placed = [0]
        await self.start_router()

    def leave(self) -> None:
        """Remove the runtime folder, as at the end of `octet serve` or at the start of the next."""
        if self.runs:
            shutil.rmtree(self.runtime)

    def _make(self, placement: ReplicaPlacement, weights: WantedWeights) -> ProcessSpec:
        self.specs[placement.name] = weights.model
        return ProcessSpec(placement.name, fork=_never)

    async def start_router(self) -> None:
        store = make_store(self.ensemble.store.url, ensemble=self.ensemble.name, wall=self.wall)
        control = ControlPlane(
            self.ensemble, store, self.replicas, wall=self.wall, clock=self.wall.clock, weights=self.runtime
        )
        await control.start(with_tasks=False)
        self.control = control

    async def stop_router(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            self.task = None
        if self.control is not None:
            await self.control.close()
            self.control = None

    async def turn(self, seconds: float = 1.0) -> None:
        """Let time pass: processes start and stop, the supervisor and the router each take their turn."""
        self.wall.clock.sleep(seconds)
        for process in [*self.supervisor.processes]:
            model = self.specs[process.name]
            if process.is_retired:
                self.supervisor.processes.remove(process)
            elif not self.contents[model]:
                self.supervisor.processes.remove(process)
                self.supervisor.failed_starts[process.name] = f"{model}: no such file"
            else:
                process.was_ready = True
        running = {each.name: self.contents[self.specs[each.name]] for each in self.supervisor.processes}
        self._connect({name: revision for name, revision in running.items() if name not in self.dead})
        self.dead.clear()
        self.weights.turn(cast(Supervisor, self.supervisor))
        if self.control is not None:
            await self.control.tick(self.wall())
            await self.control._keep_adapters_loaded()
            self._connect(dict(running.items()))
            self.control._publish_status()

    def _connect(self, running: dict[str, str]) -> None:
        """Let the fleet have the replicas that the router placed; those that do not run are not linked."""
        found = {}
        for number in self.replicas.placed:
            process = NAME if number == 0 else f"{NAME}@{number}"
            name = "algo-0" if number == 0 else f"algo-0.{number}"
            linked = process in running
            found[name] = FakeReplica(name, NAME, revision=running.get(process, ""), linked=linked)
        self.replicas.replicas = found

    @property
    def lanes(self) -> SpecialistLanes:
        assert self.control is not None
        lanes = self.control._state.lanes(NAME)
        assert lanes is not None
        return lanes

    def shown(self) -> dict[int, str]:
        assert self.control is not None
        return {each.number: each.status for each in self.control.lanes(NAME)}

    def running(self) -> set[str]:
        return {self.specs[each.name] for each in self.supervisor.processes if not each.is_retired}

    def judge(self, *, candidate: bool, passed: bool, count: int = 12) -> None:
        assert self.control is not None
        status = self.control.fleet_status.specialists[NAME]
        lane = status.candidate if candidate else status.lane
        for _ in range(count if lane is not None and lane.lane_id else 0):
            assert lane is not None
            self.control.record_outcome(lane.lane_id, "passed" if passed else "failed")

    async def refresh(self, model: str, digest: str = "") -> Any:
        """Refresh, and let time pass until the operator's call ends. Return its result; raise its refusal."""
        assert self.control is not None
        call = asyncio.ensure_future(self.control.refresh(NAME, model, digest, **SIGNED))
        while not call.done():
            await asyncio.sleep(0)
            await self.turn(0.5)
            await asyncio.sleep(0.06)
        return call.result()

    async def act(self, what: str) -> None:
        """Make an operator's change; a refusal because of the lanes' state changes none of them."""
        assert self.control is not None
        before = self.lanes.lanes
        try:
            await getattr(self.control, what)(NAME, **SIGNED)
        except Refusal as refusal:
            assert reason_of(refusal) == "CONFLICT" and self.lanes.lanes == before

    def order(self, model: str) -> None:
        """Start an operator's call that nothing waits for, as if the operator had left."""
        assert self.control is not None
        if self.task is None or self.task.done():
            self.task = asyncio.ensure_future(self.control.refresh(NAME, model, **SIGNED))
            self.task.add_done_callback(lambda task: None if task.cancelled() else task.exception())


def _never(_: object) -> int:
    raise AssertionError("a fake process must not run")


def run_site(scenario: Callable[[Site], Any]) -> None:
    async def run() -> None:
        with TemporaryDirectory() as folder:
            site = Site(Path(folder))
            await site.serve()
            try:
                for _ in range(3):
                    await site.turn()
                await scenario(site)
            finally:
                await site.stop_router()

    asyncio.run(run())


def test_new_weights_serve_and_the_old_ones_stop_when_they_are_trusted() -> None:
    async def scenario(site: Site) -> None:
        assert site.control is not None
        found = await site.refresh("/second")
        assert (found.status, found.number, found.model, found.revision) == ("candidate", 2, "/second", "r2")
        status = site.control.fleet_status.specialists[NAME]
        assert status.lane.revision == "r1" and "algo-0.1" in status.lane.unfit
        await site.act("promote")
        for _ in range(30):
            await site.turn()
        assert site.running() == {"/first", "/second"}, "the old weights stay until the new ones are trusted"
        site.judge(candidate=False, passed=True)
        for _ in range(round(UNUSED_SECONDS) + 4):
            await site.turn()
        assert site.running() == {"/second"} and site.replicas.placed == [1]
        back = await site.control.roll_back(NAME, **SIGNED)
        assert back.status == "serving" and site.lanes.serving.revision == "r2", "the old weights do not run yet"
        for _ in range(5):
            await site.turn()
        assert site.lanes.serving.revision == "r1" and not site.lanes.serving.fresh
        entries = [each.what for each in reversed(await site.control.audit(100, NAME))]
        assert entries == ["begin_lane", "refresh", "load_lane", "promote", "trust_lane", "return", "roll_back"]

    run_site(scenario)


def test_refused_weights_change_nothing() -> None:
    async def scenario(site: Site) -> None:
        before = site.lanes.lanes
        for model, digest, text in (
            ("/broken", "", "no such file"),
            ("/second", "0" * 64, "has the digest r2"),
            ("/first", "", "already has this content"),
        ):
            with pytest.raises(Refusal, match=text) as caught:
                await site.refresh(model, digest)
            assert reason_of(caught.value) == "INVALID_FIELD" and caught.value.error.field == "model"
            assert site.lanes.lanes == before and not site.lanes.refresh.coming
        for _ in range(round(UNUSED_SECONDS) + 4):
            await site.turn()
        assert site.running() == {"/first"} and site.lanes.lanes == before

    run_site(scenario)


def test_an_order_that_cannot_be_meant_is_refused() -> None:
    async def scenario(site: Site) -> None:
        assert site.control is not None
        for model, digest in (("relative", ""), ("", ""), ("/a\n", ""), ("/" + "a" * 2000, ""), ("/second", "abc")):
            with pytest.raises(Refusal) as caught:
                await site.control.refresh(NAME, model, digest, **SIGNED)
            assert reason_of(caught.value) == "INVALID_FIELD"
        await site.refresh("/second")
        with pytest.raises(Refusal, match="is a candidate") as caught:
            await site.refresh("/third")
        assert reason_of(caught.value) == "CONFLICT"

    run_site(scenario)


def test_a_slow_start_is_shown_and_can_be_given_up() -> None:
    async def scenario(site: Site) -> None:
        assert site.control is not None
        call = asyncio.ensure_future(site.control.refresh(NAME, "/second", **SIGNED))
        while not call.done():
            await asyncio.sleep(0.01)
            site.wall.clock.sleep(STARTING_SECONDS + 1)
        found = call.result()
        assert (found.status, found.model) == ("starting", "/second") and site.shown()[2] == "starting"
        await site.act("roll_back")
        for _ in range(round(UNUSED_SECONDS) + 4):
            await site.turn()
        assert site.shown() == {1: "serving"} and site.running() == {"/first"}

    run_site(scenario)


def test_another_configured_model_serves_and_can_be_undone() -> None:
    async def scenario(site: Site) -> None:
        await site.stop_router()
        site.contents["/first"], site.contents["/second"] = "r1", "r2"
        config = replace(site.ensemble.specialist(NAME), model="/second")
        await _serve_with(site, config)
        for _ in range(round(GRACE_SECONDS) + 6):
            await site.turn()
        assert site.lanes.serving.revision == "r2" and site.lanes.serving.fresh
        assert site.running() == {"/first", "/second"}
        await site.act("roll_back")
        await site.turn()
        assert site.lanes.serving.revision == "r1"

    run_site(scenario)


async def _serve_with(site: Site, config: SpecialistConfig) -> None:
    global ENSEMBLE  # noqa: PLW0603
    before, ENSEMBLE = ENSEMBLE, replace(ENSEMBLE, specialists=(config,))
    try:
        await site.serve()
        site.specs[NAME] = config.model
    finally:
        ENSEMBLE = before


def test_a_refresh_that_fails_at_once_is_refused_at_once() -> None:
    """The weights may fail before the order returns; the operator then waits for nothing."""

    async def scenario(site: Site) -> None:
        assert site.control is not None
        registry = site.control._lanes
        order = registry._order

        async def order_and_fail(specialist: str, update: Callable[[SpecialistLanes], LaneUpdate]) -> None:
            await order(specialist, update)
            number = site.lanes.refresh.coming
            await registry._act(
                specialist, lambda book: None if book is None else weights_failed(book, number, "no such file", 1.0)
            )

        registry._order = order_and_fail  # type: ignore[method-assign]
        with pytest.raises(Refusal, match="no such file") as caught:
            await asyncio.wait_for(site.control.refresh(NAME, "/second", **SIGNED), PATIENCE)
        assert reason_of(caught.value) == "INVALID_FIELD"

    run_site(scenario)


def test_a_file_that_cannot_be_written_or_read_is_tried_again(tmp_path: Path) -> None:
    path, unfinished = tmp_path / RUNNING_FILE, tmp_path / f"{RUNNING_FILE}.new"
    writer, reader = WeightsFile(path), WeightsFile(path)
    unfinished.mkdir()
    with pytest.raises(OSError, match="directory"):
        writer.write({"a": 1})
    assert reader.read() is None
    unfinished.rmdir()
    writer.write({"a": 1})
    assert reader.read() == {"a": 1} and reader.read() is None
    path.write_text('{"a"')
    for _ in range(2):
        with pytest.raises(ValueError, match="Expecting"):
            reader.read()
    writer.write({"a": 2})
    assert reader.read() == {"a": 2}


async def turn_all(sites: list[Site], until: Callable[[], object] = lambda: False, turns: int = 0) -> None:
    """Let time pass for all, for so many turns, or else until the condition holds."""
    async with asyncio.timeout(PATIENCE):
        while turns > 0 or not until():
            turns -= 1
            for site in sites:
                await site.turn(1 / len(sites))
            await asyncio.sleep(0.01)
            if turns == 0:
                return


def test_supervisors_that_share_a_store_refresh_nothing_and_undo_nothing() -> None:
    async def scenario(first: Site) -> None:
        second = Site(first.folder, "other", first.wall)
        second.contents["/second"] = ""  # this machine lacks the new weights
        await second.serve()
        mine, theirs = first.control, second.control
        assert mine is not None and theirs is not None
        try:
            await turn_all([first, second], lambda: mine._weights.others() and second.shown())
            before = first.lanes
            for site in (first, second):
                with pytest.raises(Refusal, match="share the store") as caught:
                    await site.refresh("/second")
                assert reason_of(caught.value) == "CONFLICT"
            assert first.lanes == before
            await second.stop_router()
            second.leave()
            second.runs = 0
            await first.refresh("/second")  # the other one is gone
            await first.act("promote")
            await second.serve()
            theirs = second.control
            assert theirs is not None
            await turn_all([first, second], lambda: theirs._weights.failed(NAME))
            await turn_all([first, second], turns=round(3 * GRACE_SECONDS))
            for site in (first, second):
                assert site.lanes.serving.revision == "r2", "a supervisor that cannot start the weights gave them up"
            assert "left to the other" in theirs._lanes.remark(NAME)
            assert mine._state.holders(NAME, first.lanes.serving)
        finally:
            await second.stop_router()

    run_site(scenario)


@given(st.integers(1, 4), st.integers(1, 3), st.lists(st.booleans(), max_size=40))
@settings(max_examples=30, deadline=None)
def test_new_weights_are_opened_one_at_a_time(num_replicas: int, num_weights: int, readiness: list[bool]) -> None:
    """Each replica checks the free memory before it opens its weights, so no other may take it meanwhile."""
    config = SpecialistConfig(NAME, model="/first", replicas=num_replicas)
    with TemporaryDirectory() as text:
        folder = Path(text)
        placements = place_replicas(replace(ENSEMBLE, specialists=(config,)), folder)
        weights, supervisor = WeightsProcesses(folder, placements, {}), FakeSupervisor()
        for spec in weights.processes(
            [ProcessSpec(each.name, fork=_never) for each in placements],
            lambda place, _: ProcessSpec(place.name, fork=_never),
        ):
            supervisor.add(spec)
        wanted = [WantedWeights(0, "/first"), *(WantedWeights(each, "/second") for each in range(1, num_weights + 1))]
        (folder / WANTED_FILE).write_text(json.dumps(wanted_to_json({NAME: wanted})))
        for is_ready in [*readiness, *[True] * 20]:
            weights.turn(cast(Supervisor, supervisor))
            opening = [each for each in supervisor.processes if "@" in each.name and not each.was_ready]
            assert len(opening) <= 1
            for each in opening:
                each.was_ready = is_ready
        assert len(supervisor.processes) == num_replicas * (1 + num_weights), "all of them must start in the end"


ACTS = [
    *("refresh /second", "refresh /third", "refresh /broken", "promote", "roll_back", "pass", "fail", "wait", "wait"),
    *("kill router", "kill replica", "kill serve", "lose /second", "restore"),
]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(ACTS), min_size=5, max_size=25))
def test_whatever_is_killed_the_serving_weights_run_and_orders_end(acts: list[str]) -> None:
    async def scenario(site: Site) -> None:
        for act in acts:
            await _do(site, act)
            await site.turn()
            _check(site)
        site.contents.update(CONTENTS)
        for _ in range(round(UNUSED_SECONDS + 3 * GRACE_SECONDS)):
            await site.turn()
            _check(site)
        lanes = site.lanes
        assert not lanes.refresh.coming, "an order must end"
        held = {lanes.serving.revision, *(each.revision for each in (lanes.candidate,) if each is not None)}
        held |= {lanes.previous.revision} if lanes.previous is not None and lanes.serving.fresh else set()
        assert {site.contents[model] for model in site.running()} == held, "only weights that lanes need run"
        assert site.control is not None and site.control._state.holders(NAME, lanes.serving)

    run_site(scenario)


async def _do(site: Site, act: str) -> None:
    what, _, which = act.partition(" ")
    if what == "refresh":
        site.order(which)
        await asyncio.sleep(0)
    elif what in ("promote", "roll_back"):
        await site.act(what)
    elif what in ("pass", "fail"):
        site.judge(candidate=True, passed=what == "pass")
        site.judge(candidate=False, passed=what == "pass")
    elif what == "lose":
        site.contents[which] = ""
    elif what == "restore":
        site.contents.update(CONTENTS)
    elif act == "kill router":
        await site.stop_router()
        await site.turn()
        await site.start_router()
    elif act == "kill replica":
        site.dead.update(each.name for each in site.supervisor.processes[:1])
    elif act == "kill serve":
        await site.stop_router()
        await site.serve()


def _check(site: Site) -> None:
    """Whatever happens, one lane serves; a replica answers for a lane only if it runs the lane's weights."""
    assert site.control is not None
    lanes, status = site.lanes, site.control.fleet_status.specialists[NAME]
    assert SpecialistLanes.from_body(lanes.to_body()) == lanes
    assert len(site.running()) <= 4
    if status.lane.lane_id:
        assert status.lane.revision == lanes.serving.revision
        for each in site.replicas.observe():
            if each.name not in status.lane.unfit and each.weights:
                assert each.revision in ("", lanes.serving.revision)
