"""Load reports, adapters, drain, describe, health and reflection."""

import asyncio
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from octet.client.replica import SpecialistClient, SpecialistError
from octet.v1 import specialist_pb2 as wire
from specialist.engines.sim.engine import InjectedFault
from specialist.server.server import ReplicaServer, WarmUpFailed
from specialist.server.settings import ServiceSettings
from tests.octet.rpc.pending_calls import codes_of, connected, send_pending_calls
from tests.patience import PATIENCE
from tests.specialist.server.harness import (
    QUICK,
    adapter_directory,
    ask,
    begin_call,
    begin_paused,
    expected,
    generate_request,
    running_replica,
    serving_simulated,
    sim,
    until,
)

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def health_of(port: int, service: str = "octet.v1.Specialist") -> int:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return int((await stub.Check(health_pb2.HealthCheckRequest(service=service))).status)


async def refused(awaitable: object) -> SpecialistError:
    with pytest.raises(SpecialistError) as caught:
        await awaitable  # type: ignore[misc]
    assert caught.value.error is not None
    return caught.value


async def test_ready_only_when_warm() -> None:
    replica = sim()()
    server = ReplicaServer(replica, ServiceSettings(port=0))
    seen = []

    loop = asyncio.get_running_loop()
    words_warm_up = replica.codec.warm_up

    def warm_up() -> None:
        seen.append(asyncio.run_coroutine_threadsafe(health_of(server.port), loop).result(PATIENCE))
        words_warm_up()

    replica.codec.warm_up = warm_up  # type: ignore[method-assign]
    await server.start()
    assert seen == [NOT_SERVING]
    assert await health_of(server.port) == await health_of(server.port, "") == SERVING
    await server.stop(0)


async def test_drain_refuses_new_requests_and_finishes_running_ones() -> None:
    async with serving_simulated(QUICK) as (served, clock):
        request = generate_request(max_tokens=300, ignore_eos=True)
        running = await begin_paused(served, clock, request)
        draining = asyncio.create_task(served.client.drain())
        while await health_of(served.server.port) == SERVING:
            await asyncio.sleep(0.001)
        late = await ask(served.client, generate_request())
        assert late.accepted is None and late.error is not None and late.error.error is not None
        assert late.error.code == grpc.StatusCode.UNAVAILABLE
        assert late.error.error.reason == wire.ERROR_REASON_DRAINING
        assert not draining.done()
        clock.resume()
        assert (await running).tokens == expected(served.replica, request)
        assert await draining == 1
        served.check_whole()
        async for report in served.client.watch_load():
            assert report.draining
            break


async def test_load_reports_match_the_replica() -> None:
    async with serving_simulated(QUICK, num_blocks=20, max_running=4, max_waiting=50) as (served, clock):
        reports = served.client.watch_load(min_interval_ms=5)
        first = await anext(reports)
        assert not first.HasField("prefill_rate") and not first.HasField("decode_rate")
        seen: list[wire.LoadReport] = [first]

        async def watch() -> None:
            async for report in reports:
                seen.append(report)

        watching = asyncio.create_task(watch())
        prompts = [generate_request(f"{i} " * 20, max_tokens=60, ignore_eos=True, priority=i % 3) for i in range(12)]
        clock.pause()
        calls = [begin_call(served, request) for request in prompts]
        await until(lambda: served.server.handler.num_live == len(prompts))

        def are_reported() -> bool:
            clock.allow_step()
            return seen[-1].running >= 2 and seen[-1].waiting >= 4

        await until(are_reported)
        clock.resume()
        await asyncio.gather(*calls)
        await served.idle()
        await until(lambda: not (seen[-1].running + seen[-1].waiting + seen[-1].blocks.used))
        watching.cancel()
        for report in seen:
            blocks = report.blocks
            assert blocks.free + blocks.cached + blocks.used == blocks.total == 20
            assert report.running <= report.max_running == 4
        assert max(report.running for report in seen) >= 2
        assert max(report.waiting for report in seen) >= 4
        last = seen[-1]
        pool = served.replica.scheduler.pool
        assert (last.running, last.waiting, last.blocks.used) == (0, 0, 0)
        assert last.blocks.cached == sum(1 for block in pool.blocks[1:] if block.key is not None)
        assert last.prefill_rate > 0 and last.decode_rate > 0 and last.drain_rate > 0
        # A decode step of up to four rows takes slightly more than half a millisecond.
        assert 200 < last.decode_rate < 8_000
        assert last.times_preempted > 0 and last.preempting


async def test_idle_replica_reports_once() -> None:
    async with running_replica() as served:
        reports = served.client.watch_load(min_interval_ms=0)
        await anext(reports)
        await asyncio.sleep(0.1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(reports), 0.2)


async def test_an_adapter_changes_the_answer_and_its_name_can_be_reused(tmp_path: Path) -> None:
    adapter_directory(tmp_path, "one", b"first"), adapter_directory(tmp_path, "two", b"second")
    async with running_replica(adapter_root=tmp_path) as served:
        request = generate_request("x" * 50)
        bare = await ask(served.client, request)
        loaded = await served.client.load_adapter("style", "one")
        request.adapters.append("style")
        styled = await ask(served.client, request)
        assert styled.accepted is not None
        assert list(styled.accepted.lane.adapter_digests) == [loaded.digest]
        assert styled.tokens == expected(served.replica, request, (loaded.digest,)) != bare.tokens
        replaced = await served.client.load_adapter("style", str(tmp_path / "two"))
        assert replaced.digest != loaded.digest
        again = await ask(served.client, request)
        assert again.tokens == expected(served.replica, request, (replaced.digest,)) != styled.tokens
        assert again.usage is not None and again.usage.cache_hit_tokens == 0
        assert [a.name for a in (await served.client.describe()).adapters] == ["style"]
        await served.client.unload_adapter("style")
        gone = await ask(served.client, request)
        assert gone.error is not None and gone.error.error is not None
        assert gone.error.code == grpc.StatusCode.NOT_FOUND and gone.error.error.field == "adapters"
        assert (await refused(served.client.unload_adapter("style"))).code == grpc.StatusCode.NOT_FOUND
        await served.idle()
        assert served.replica.adapters.num_in_use == 0


async def test_adapters_come_from_below_their_root_only(tmp_path: Path) -> None:
    root = tmp_path / "root"
    outside = adapter_directory(tmp_path, "outside")
    (tmp_path / "bare").mkdir()
    adapter_directory(root, "fine")
    (root / "link").symlink_to(outside)
    half = root / "half"
    half.mkdir()
    (half / "adapter_config.json").write_text("{}")
    (half / "adapter_model.safetensors").symlink_to(outside / "adapter_model.safetensors")
    (root / "file").write_text("not a directory")
    (root / "circle").symlink_to(root / "circle")
    (root / "round").mkdir()
    (root / "round" / "adapter_config.json").symlink_to(root / "circle")
    async with running_replica(adapter_root=root) as served:
        for path in (
            "../outside",
            "../bare",
            str(outside),
            "link",
            "half",
            "file",
            "circle",
            "round",
            "y" * 300,
            "fine/" + "y" * 3000,
            "missing",
            ".",
            "",
            "a\0b",
            "/",
            "x" * 5000,
        ):
            error = await refused(served.client.load_adapter("a", path))
            assert error.error is not None
            assert (error.code, error.error.field) == (grpc.StatusCode.INVALID_ARGUMENT, "path"), path
            assert str(tmp_path) in path or str(tmp_path) not in str(error), "the error may quote what the caller sent"
        for name in ("", "../a", "A", "a/b", "x" * 65):
            error = await refused(served.client.load_adapter(name, "fine"))
            assert error.error is not None and error.error.field == "name", name
        (root / "empty").mkdir()
        assert (await refused(served.client.load_adapter("a", "empty"))).code == grpc.StatusCode.FAILED_PRECONDITION
        await served.client.load_adapter("a", "fine")
    async with running_replica() as rootless:
        assert (await refused(rootless.client.load_adapter("a", "fine"))).code == grpc.StatusCode.FAILED_PRECONDITION


async def test_describe_returns_every_enforced_limit() -> None:
    async with running_replica() as served:
        described = await served.client.describe()
        assert described.context == 512 and described.block_size == 16 and described.num_blocks == 128
        assert described.engine == "sim" and described.lane.specialist == "writer"
        assert all(kernel.why for kernel in described.kernels)
        reported = {limit.field for limit in described.limits}
        fields = set(wire.GenerateRequest.DESCRIPTOR.fields_by_name) - {"sampling", "chat", "tokens", "structure"}
        fields -= {"ignore_eos", "shadow"}
        fields |= {f"sampling.{name}" for name in wire.Sampling.DESCRIPTOR.fields_by_name}
        fields |= {"structure.json_schema", "structure.regex", "structure.choice", "structure.choice.choices"}
        assert fields <= reported


async def test_reflection_lists_the_service() -> None:
    async with running_replica() as served, grpc.aio.insecure_channel(served.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        async for response in call:
            names = {service.name for service in response.list_services_response.service}
            assert {"octet.v1.Specialist", "grpc.health.v1.Health"} <= names
            break


async def test_dead_step_loop_ends_every_stream_and_health() -> None:
    async with serving_simulated(QUICK) as (served, clock):
        clock.pause()
        running = [begin_call(served, generate_request(f"{i}", max_tokens=400, ignore_eos=True)) for i in range(6)]
        await until(lambda: served.server.handler.num_live == 6)

        def broken() -> None:
            raise AssertionError("a bug in the scheduler")

        served.replica.scheduler.assemble_step = broken  # type: ignore[method-assign]
        clock.resume()
        for received in await asyncio.gather(*running):
            assert received.usage is None and received.error is not None and received.error.error is not None
            assert received.error.code == grpc.StatusCode.INTERNAL
            assert received.error.error.reason == wire.ERROR_REASON_REPLICA_FAILED
            assert "scheduler" not in str(received.error)
        await asyncio.wait_for(served.server.failed.wait(), PATIENCE)
        assert await health_of(served.server.port) == await health_of(served.server.port, "") == NOT_SERVING
        late = await ask(served.client, generate_request())
        assert late.error is not None and late.error.code == grpc.StatusCode.INTERNAL


async def test_an_engine_that_cannot_answer_never_becomes_ready() -> None:
    server = ReplicaServer(sim(faults=lambda step: InjectedFault("fail_before"))(), ServiceSettings(port=0))
    with pytest.raises(WarmUpFailed):
        await server.start()
    refusal = await ask_once(server.port)
    assert refusal.code == grpc.StatusCode.UNAVAILABLE
    assert refusal.error is not None and refusal.error.reason == wire.ERROR_REASON_NOT_READY
    await server.stop(0)


async def ask_once(port: int) -> SpecialistError:
    async with SpecialistClient(f"127.0.0.1:{port}") as client:
        received = await ask(client, generate_request())
    assert received.error is not None
    return received.error


async def test_call_that_arrives_while_a_replica_ends_is_refused() -> None:
    server = ReplicaServer(sim()(), ServiceSettings(port=0))
    await server.start()
    async with connected(f"127.0.0.1:{server.port}", "/octet.v1.Specialist/Generate", b"") as ask:
        calls = send_pending_calls(ask)
        await server.stop(600)
        assert grpc.StatusCode.CANCELLED not in await codes_of(calls)


async def test_watcher_does_not_delay_the_end() -> None:
    server = ReplicaServer(sim()(), ServiceSettings(port=0))
    await server.start()
    async with SpecialistClient(f"127.0.0.1:{server.port}") as client:
        reports = client.watch_load(min_interval_ms=60_000)
        await anext(reports)
        async with asyncio.timeout(PATIENCE / 2):
            await server.stop(600)
        with pytest.raises(StopAsyncIteration):
            await anext(reports)
