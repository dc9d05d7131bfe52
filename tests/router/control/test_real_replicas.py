"""A control plane that runs its own tasks, with a real fleet and replicas behind real sockets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from octet.clock import SystemClock
from octet.config.ensemble import Ensemble, SpecialistConfig
from octet.rpc.refusal import Refusal
from router.control.control import ControlPlane
from router.control.replicas import FleetReplicas
from router.dispatch.replicas.fleet import Fleet
from router.dispatch.transport import open_transport
from tests.router.control.harness import SIGNED, reason_of
from tests.router.store.stores import eventually, production_store
from tests.specialist.server.harness import adapter_directory, running_replica, sim

WRITER = Ensemble(specialists=(SpecialistConfig("writer"),), name="octet")


@asynccontextmanager
async def controlled(file: Path, addresses: list[str]) -> AsyncIterator[ControlPlane]:
    clock = SystemClock()
    fleet = Fleet(WRITER, {"writer": addresses}, clock, Random(1), open_transport())
    await fleet.start()
    control = ControlPlane(WRITER, production_store(f"sqlite:{file}"), FleetReplicas(fleet))
    await control.start()
    try:
        await eventually(lambda: sum(info.status == "serving" for info in control.replicas()) == len(addresses))
        await eventually(lambda: bool(control.fleet_status.specialists["writer"].lane.lane_id))
        yield control
    finally:
        await control.close()
        await fleet.close()


async def test_an_adapter_is_loaded_promoted_reloaded_and_rolled_back(tmp_path: Path) -> None:
    root = tmp_path / "root"
    adapter_directory(root, "my-lora")
    async with (
        running_replica(sim(), adapter_root=root) as one,
        running_replica(sim(), adapter_root=root) as two,
        controlled(tmp_path / "s", [one.address, two.address]) as control,
    ):
        info = await control.load_adapter("writer", "my-lora", **SIGNED)
        await eventually(lambda: control.lanes("writer")[0].resident == 2)
        (name,) = one.replica.adapters.names()
        assert one.replica.adapters.names() == two.replica.adapters.names() == {name: info.digests[0]}
        await control.promote("writer", "my-lora", **SIGNED)
        two.replica.adapters.unload(name)
        two.server.publisher.notify()
        await eventually(lambda: name in two.replica.adapters.names())
        assert control.fleet_status.specialists["writer"].lane.load_names == (name,)
        control._adapters._unused_seconds = 0.2
        await control.roll_back("writer", **SIGNED)
        await eventually(lambda: not one.replica.adapters.names() and not two.replica.adapters.names())
        assert [each.what for each in await control.audit(10, "writer")] == [
            "roll_back",
            "promote",
            "load_lane",
            "begin_lane",
        ]
        assert control.replicas()[0].revision == control.lanes("writer")[0].revision != ""


async def test_a_replicas_refusal_reaches_the_operator(tmp_path: Path) -> None:
    async with running_replica(sim(), adapter_root=tmp_path / "root") as one, running_replica(sim()) as rootless:
        (tmp_path / "root").mkdir()
        async with controlled(tmp_path / "s", [one.address]) as control:
            with pytest.raises(Refusal) as caught:
                await control.load_adapter("writer", "../outside", **SIGNED)
            assert reason_of(caught.value) == "INVALID_FIELD" and caught.value.error.field == "path"
        async with controlled(tmp_path / "t", [rootless.address]) as control:
            with pytest.raises(Refusal) as caught:
                await control.load_adapter("writer", "anything", **SIGNED)
            assert reason_of(caught.value) == "ADAPTER_REFUSED" and "no adapter root" in str(caught.value)
            await rootless.server.stop(0)
            await eventually(lambda: control.replicas()[0].status == "connecting")
            with pytest.raises(Refusal) as caught:
                await control.load_adapter("writer", "anything", **SIGNED)
            assert reason_of(caught.value) == "NO_REPLICA"


async def test_a_replica_that_reloads_other_content(tmp_path: Path) -> None:
    """The adapter's files change after its promotion. The new content is never used, and the lane is rolled back."""
    root = tmp_path / "root"
    adapter_directory(root, "my-lora")
    async with (
        running_replica(sim(), adapter_root=root) as one,
        controlled(tmp_path / "s", [one.address]) as control,
    ):
        await control.load_adapter("writer", "my-lora", **SIGNED)
        await control.promote("writer", **SIGNED)
        (name,) = control.fleet_status.specialists["writer"].lane.load_names
        (root / "my-lora" / "adapter_model.safetensors").write_bytes(b"other weights")
        one.replica.adapters.unload(name)
        one.server.publisher.notify()
        await eventually(lambda: bool(control.fleet_status.specialists["writer"].unfit_reason))
        await eventually(lambda: control.fleet_status.specialists["writer"].lane.number == 1)
        assert (
            not control.fleet_status.specialists["writer"].unfit_reason
            and not control.fleet_status.specialists["writer"].lane.adapters
        )
        last = (await control.audit(1, "writer"))[0]
        assert (last.what, last.who) == ("roll_back", "lanes")
