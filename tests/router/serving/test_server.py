"""The whole router: health, a reload while it serves, and replicas behind TLS."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from octet.config.loader import read_ensemble
from octet.config.reload import ConfigWatch
from octet.rpc import handlers
from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire
from router import server
from router.dispatch.transport import ReplicaTls
from router.routing.policy import RoutingPolicy
from router.settings import RouterSettings, replica_addresses
from tests.octet.rpc.pending_calls import codes_of, connected, details_of, send_pending_calls
from tests.patience import PATIENCE
from tests.router.serving.harness import (
    CallResult,
    RouterHarness,
    ensemble_of,
    infer_request,
    patient_dispatch,
    running_router,
)
from tests.router.serving.spy import hang, running_spy
from tests.specialist.server.harness import running_replica, sim
from tests.specialist.server.test_tls import tls

NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING


async def health(routed: RouterHarness) -> int:
    method = routed.channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        health_pb2.HealthCheckRequest.SerializeToString,
        health_pb2.HealthCheckResponse.FromString,
    )
    status: int = (await method(health_pb2.HealthCheckRequest(service="octet.v1.Inference"))).status
    return status


async def test_health_says_serving_when_every_lane_is_warm_and_not_while_draining() -> None:
    async with running_replica(sim()) as served:
        places = {"writer": [served.address], "poet": ["127.0.0.1:1"]}
        async with running_router(places, warm=False) as routed:
            await routed.until(lambda: routed.server.fleet.waiting_for == ["poet"])
            assert await health(routed) == NOT_SERVING
            assert (await routed.ask(infer_request())).code is grpc.StatusCode.OK, "an available specialist must answer"
        async with running_router({"writer": [served.address]}) as routed:
            assert await health(routed) == SERVING
            await routed.server.drain()
            assert await health(routed) == NOT_SERVING


async def test_slow_caller_of_a_draining_router_gets_a_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression test: on a busy machine, gRPC cancelled calls before their refusal was sent."""
    refuse, asked = handlers.refuse, asyncio.Event()

    async def refuse_slowly(context: Any, refusal: Refusal) -> None:
        asked.set()
        await asyncio.sleep(0.8)
        await refuse(context, refusal)

    async with running_replica(sim()) as served, running_router({"writer": [served.address]}) as routed:
        watching = _watch_health(routed)
        assert (await watching.read()).status == SERVING
        await routed.server.drain()
        monkeypatch.setattr(handlers, "refuse", refuse_slowly)
        asking_now = asyncio.create_task(routed.ask(infer_request()))
        await asked.wait()
        async with asyncio.timeout(PATIENCE):  # A health watch must not delay the stop.
            await routed.server.stop(600)
        result = await asking_now
        assert (result.code, result.reason) == (grpc.StatusCode.UNAVAILABLE, error_pb2.ERROR_REASON_DRAINING)


async def test_call_not_handed_over_when_a_router_ends_gets_a_refusal() -> None:
    """Regression test: gRPC cancelled calls without a reason if it had not handed them over to the router yet."""
    async with running_replica(sim()) as served, running_router({"writer": [served.address]}) as routed:
        await routed.server.drain()
        address, request = f"127.0.0.1:{routed.server.port}", infer_request().SerializeToString()
        async with connected(address, "/octet.v1.Inference/Generate", request) as ask:
            calls = send_pending_calls(ask)
            await routed.server.stop(600)
            assert await codes_of(calls) == {grpc.StatusCode.UNAVAILABLE}
            assert "this router is draining" in " ".join(await details_of(calls))


async def test_request_whose_refusal_is_late_gets_its_reason_when_the_router_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression test: on a busy machine, the refusal took longer than gRPC's grace period, and the connection was
    closed without a reason."""
    monkeypatch.setattr(server, "_LAST_STATUS_SECONDS", 0.01)
    monkeypatch.setattr(server, "_LATE_STATUS_SECONDS", 0.01)
    refuse, may_refuse = handlers.refuse, asyncio.Event()

    async def refuse_late(context: Any, refusal: Refusal) -> None:
        await may_refuse.wait()
        await refuse(context, refusal)

    monkeypatch.setattr(handlers, "refuse", refuse_late)
    async with running_replica(sim()) as served, running_router({"writer": [served.address]}) as routed:
        await routed.server.drain()
        asked = asyncio.create_task(routed.ask(infer_request()))
        await routed.until(lambda: routed.server._inference.calls.num_open == 1)
        stop, is_stopping = routed.server._grpc.stop, asyncio.Event()

        async def note_stop(grace: float | None) -> None:
            is_stopping.set()
            await stop(grace)

        monkeypatch.setattr(routed.server._grpc, "stop", note_stop)
        stopping = asyncio.create_task(routed.server.stop(60))
        await is_stopping.wait()
        await asyncio.wait((asked,), timeout=0.3)  # much longer than gRPC's grace period
        assert not asked.done(), "the call must wait for its refusal"
        may_refuse.set()
        result = await asked
        await stopping
    assert (result.code, result.reason) == (grpc.StatusCode.UNAVAILABLE, error_pb2.ERROR_REASON_DRAINING)


async def test_calls_wait_while_listeners_close_and_health_checks_do_not() -> None:
    async with running_replica(sim()) as served, running_router({"writer": [served.address]}) as routed:
        drain_gate = routed.server._drain_gate
        async with drain_gate.hold():
            asked = asyncio.create_task(routed.ask(infer_request()))
            await routed.until(lambda: drain_gate.num_held == 1)
            async with asyncio.timeout(PATIENCE):
                assert await health(routed) == SERVING
            assert not asked.done()
        assert (await asked).code is grpc.StatusCode.OK


def _watch_health(routed: RouterHarness) -> Any:
    method = routed.channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        health_pb2.HealthCheckRequest.SerializeToString,
        health_pb2.HealthCheckResponse.FromString,
    )
    return method(health_pb2.HealthCheckRequest(service="octet.v1.Inference"))


async def test_reload_under_load_fails_no_request_and_applies_to_later_ones() -> None:
    async with running_replica(sim()) as served, running_router({"writer": [served.address]}) as routed:
        over = asyncio.Event()

        result: list[CallResult] = []

        async def load() -> None:
            while not over.is_set():
                result.append(await routed.ask(infer_request()))

        loads = [asyncio.create_task(load()) for _ in range(4)]
        before = ensemble_of("writer")
        for failures in (4, 5, 6):
            changed = replace(before, dispatch=patient_dispatch(failures=failures), default="writer")
            await routed.server.reload(changed)
            num_before = len(result)
            await routed.until(lambda num=num_before: len(result) > num + 8)
            preview = await routed.call("Route", infer_request(), wire.Receipt)
            assert preview.decision.config_digest == RoutingPolicy(changed).digest
            assert routed.server.fleet.replica_sets["writer"].dispatch.failures == failures
        over.set()
        await asyncio.gather(*loads)
        assert {each.code for each in result} == {grpc.StatusCode.OK}


async def test_a_changed_file_is_reloaded_and_an_invalid_one_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ensemble.yaml"
    text = "specialists:\n  writer:\n    describe: words\n    engine: sim\n    addresses: ['127.0.0.1:1']\n"
    path.write_text(text)
    ensemble = read_ensemble(path)
    async with running_router({"writer": ["127.0.0.1:1"]}, ensemble=ensemble, warm=False) as routed:
        service = routed.server.service
        routed.server.follow(ConfigWatch(path, ensemble, interval=0.02, settle=0.01))
        first = service.policy.digest
        path.write_text(text + "default: writer\n")
        await routed.until(lambda: service.policy.digest != first)
        second = service.policy.digest
        path.write_text(text + "default: unknown\n")
        await routed.until(lambda: "was not reloaded" in caplog.text)
        assert service.policy.digest == second and "unknown" in caplog.text


async def test_a_request_keeps_the_policy_it_began_with() -> None:
    async with running_spy(hang) as spy, running_router({"writer": [spy.address]}) as routed:
        before = routed.server.service.policy.digest
        running = asyncio.create_task(routed.ask(infer_request(request_id="r")))
        await routed.until(lambda: spy.num_live == 1)
        changed = replace(ensemble_of("writer"), default="writer")
        await routed.server.reload(changed)
        assert routed.server.service.policy.digest != before
        await routed.call("Cancel", wire.CancelRequest(request_id="r"), wire.CancelResponse)
        result = await running
        assert result.reason == error_pb2.ERROR_REASON_CANCELLED
        assert result.receipt is not None and result.receipt.decision.config_digest == before


async def test_a_router_presents_its_certificate_to_replicas(pki: Path) -> None:
    async with running_replica(tls=tls(pki)) as served:
        shown = ReplicaTls(pki / "ca.pem", pki / "caller.pem", pki / "caller.key")
        async with running_router({"writer": [served.address]}, replica_tls=shown) as routed:
            assert (await routed.ask(infer_request())).code is grpc.StatusCode.OK
        bare = ReplicaTls(pki / "ca.pem")
        async with running_router({"writer": [served.address]}, replica_tls=bare, warm=False) as routed:
            received = await routed.ask(infer_request(timeout_ms=1000))
            assert received.reason == error_pb2.ERROR_REASON_NO_REPLICA


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({}, "no addresses are configured for writer"),
        ({"unknown": ("127.0.0.1:1",)}, "there is no specialist 'unknown'"),
        ({"writer": ("127.0.0.1",)}, "an address must be"),
    ],
)
def test_invalid_replica_addresses_are_refused_at_the_start(given: dict[str, tuple[str, ...]], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        replica_addresses(ensemble_of("writer"), RouterSettings(replicas=given))
