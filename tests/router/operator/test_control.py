"""The operator client, the operator service, the control plane and a real store together, from the socket to the
disk."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import grpc
import pytest

from octet import InvalidRequest, NotFound, Operator
from octet.cli import main
from octet.clock import SystemClock
from octet.config.ensemble import Ensemble, IntentConfig, SpecialistConfig, StoreConfig
from octet.v1 import operator_pb2 as wire
from router.api.grpc.services import OperatorService
from router.api.operations import OperatorApi
from router.control.control import ControlPlane
from router.control.replicas import FleetReplicas, ObservedReplica
from router.quality.slo import SloTracker
from router.receipt_log import ReceiptCache, ReceiptLog
from router.store.rows import ComparisonRow
from router.store.store import open_store
from tests.patience import PATIENCE
from tests.router.overview.harness import make_overviews

ENSEMBLE = Ensemble(
    specialists=(SpecialistConfig("stl", floor=0.9, fallback="debug"), SpecialistConfig("debug")),
    intents=(IntentConfig("review"),),
)


class Replicas(FleetReplicas):
    """Two replicas that load every adapter."""

    def __init__(self) -> None:
        self._seen = {name: ObservedReplica(name, name, revision="ab" * 32, running=1) for name in ("stl", "debug")}

    def observe(self) -> list[ObservedReplica]:
        return list(self._seen.values())

    async def load(self, replica: str, name: str, path: str) -> str:
        digest = path.encode().hex().ljust(64, "0")[:64]
        adapters = {**self._seen[replica].adapters, name: digest}
        self._seen[replica] = replace(self._seen[replica], adapters=adapters)
        return digest

    async def unload(self, replica: str, name: str) -> None:
        adapters = {key: value for key, value in self._seen[replica].adapters.items() if key != name}
        self._seen[replica] = replace(self._seen[replica], adapters=adapters)


@contextmanager
def controlled(folder: Path, comparisons: int = 0) -> Iterator[str]:
    """Yield the address of a router with only the operator service."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    store = open_store(StoreConfig(url=f"sqlite:{folder / 'store.db'}"), "octet")

    async def start() -> tuple[ControlPlane, Any, int]:
        control = ControlPlane(ENSEMBLE, store, Replicas())
        await control.start()
        now = round(time.time() * 1000)
        for number in range(comparisons):
            kept = wire.Comparison(
                request_id=str(number), at_unix_ms=now, intent="review", primary="stl", shadow="debug",
                why="low_confidence", confidence=number / comparisons / 2, primary_outcome="failed",
                shadow_outcome="passed",
            )  # fmt: skip
            store.keep_comparison(ComparisonRow(now, kept.request_id, kept.SerializeToString()))
        slos = SloTracker(ENSEMBLE, control.breakers, SystemClock(), time.time)
        receipts = ReceiptLog(ReceiptCache(SystemClock(), max_receipts=1, seconds=1), store)
        api, view = OperatorApi(control, receipts, slos), make_overviews().view
        service = OperatorService(api, receipts, wire.ShadowCounts, view)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((service.handler(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return control, server, port

    async def stop(control: ControlPlane, server: Any) -> None:
        await server.stop(0)
        await control.close()

    control, server, port = asyncio.run_coroutine_threadsafe(start(), loop).result(PATIENCE)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(stop(control, server), loop).result(PATIENCE)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        loop.close()


def until(operator: Operator, condition: Any) -> None:
    end = time.monotonic() + PATIENCE
    while not condition(operator):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_acknowledged_change_outlives_the_router(tmp_path: Path) -> None:
    with controlled(tmp_path) as address, Operator(address, who="ann") as operator:
        until(operator, lambda it: len(it.lanes()) == 2)
        held = operator.hold_breaker("stl", "open", why="bad refresh")
        assert (held.hold, held.hold_by, held.fallback) == ("open", "ann", "debug")
        assert operator.set_knob("review.priority_floor", 5, why="storm").value == 5
        assert operator.load_adapter("debug", "adapters/my-lora", why="a try").status == "candidate"
        assert operator.drain("stl", why="new kernel").status == "drained_by_operator"
    with controlled(tmp_path) as address, Operator(address, who="bob") as operator:
        breakers = {(each.specialist, each.lane_status): each for each in operator.breakers().breakers}
        assert breakers["stl", "serving"].hold_why == "bad refresh" and ("debug", "candidate") in breakers
        assert {each.name: each.value for each in operator.knobs()}["review.priority_floor"] == 5
        # The replica was restarted too, and loads the adapter again.
        until(operator, lambda it: it.lanes("debug")[0].resident == 1)
        assert operator.promote("debug", "my-lora").status == "serving"
        assert operator.roll_back("debug").adapter == ""
        assert operator.release_breaker("stl").hold == ""
        assert operator.release_knob("review.priority_floor").set_by == "configuration"
        assert operator.undrain("stl").status == "serving"
        changes = {(each.who, each.what, each.subject) for each in operator.audit()}
        assert {each[0] for each in changes} >= {"ann", "bob"} and ("ann", "hold_breaker", "stl") in changes
        assert all(each.why for each in operator.audit())


def test_refusals_of_the_control_plane_are_one_line_with_a_suggestion(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with controlled(tmp_path) as address, Operator(address) as operator:
        for call, meant in (
            (lambda: operator.hold_breaker("debgu", "open", why="x"), "debug"),
            (lambda: operator.set_knob("reveiw.priority_floor", 1), "review.priority_floor"),
            (lambda: operator.drain("dbug"), "debug"),
            (lambda: operator.lanes("stll"), "stl"),
        ):
            with pytest.raises(NotFound, match=rf"did you mean {meant}\?"):
                call()
        for wrong in (
            lambda: operator.hold_breaker("stl", "ajar", why="x"),
            lambda: operator.hold_breaker("stl", "open", why=" "),
            lambda: operator.set_knob("review.priority_floor", 77),
            lambda: operator.set_knob("review.volume", 1),
            lambda: operator.release_knob("review.priority_floor"),
            lambda: operator.promote("stl"),
            lambda: operator.roll_back("stl"),
        ):
            with pytest.raises(InvalidRequest):
                wrong()
        assert main(["adapters", "rollback", "stl", "--address", address]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("octet adapters rollback: ")


def test_tuning_reads_the_stored_comparisons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with controlled(tmp_path, comparisons=300) as address, Operator(address) as operator:
        until(operator, lambda it: it.shadow_report().rows and it.shadow_report().rows[0].compared == 300)
        assert main(["router", "tune", "--address", address, "--last", "1h", "--json"]) == 0
    tuned = json.loads(capsys.readouterr().out)["intents"]["review"]
    assert (tuned["shadows"], tuned["saves"], tuned["now"]) == (300, 300, 0.5)
    assert tuned["proposed"]["threshold"] == pytest.approx(0.45, abs=0.011)
