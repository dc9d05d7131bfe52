"""`octet.Operator`: every call, its result, and unreachable routers."""

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from threading import Thread

import grpc
import pytest

from octet import Cancelled, InvalidRequest, NotFound, OctetError, Operator, Unavailable
from octet.client import records
from octet.client.errors import DeadlineExceeded, ReplicaLost
from octet.client.operator import default_operator_name
from octet.client.record_stubs import write_stubs
from octet.v1 import operator_pb2 as wire
from tests.octet.client.server import scripted
from tests.patience import PATIENCE
from tests.router.operator.fake_control import NOW_MS, FakeComparisons
from tests.router.operator.harness import OperatorHarness, running_operator

RECORDS = [
    records.BreakerInfo,
    records.KnobInfo,
    records.LaneInfo,
    records.ReplicaInfo,
    records.ShadowRow,
    records.ShadowCounts,
    records.Comparison,
    records.AuditEntry,
    records.OperatorEvent,
]


@pytest.mark.parametrize("record", RECORDS)
def test_record_has_every_field_of_its_message(record: type) -> None:
    assert {each.name for each in fields(record)} == set(getattr(wire, record.__name__).DESCRIPTOR.fields_by_name)


def test_types_of_the_records_are_up_to_date() -> None:
    """`make proto` writes the stub file."""
    assert Path(records.__file__).with_suffix(".pyi").read_text(encoding="utf-8") == write_stubs()


def test_unset_is_none_and_zero_is_zero() -> None:
    unset, zero = wire.BreakerInfo(), wire.BreakerInfo(pass_rate=0.0, floor=0.0, adapters=["a"])
    assert (records.BreakerInfo.from_wire(unset).pass_rate, records.BreakerInfo.from_wire(unset).adapters) == (
        None,
        (),
    )
    assert (records.BreakerInfo.from_wire(zero).pass_rate, records.BreakerInfo.from_wire(zero).adapters) == (
        0.0,
        ("a",),
    )
    trouble = records.OperatorEvent.from_wire(wire.OperatorEvent(at_unix_ms=1, store_trouble=""))
    assert trouble.to_dict() == {"at_unix_ms": 1, "store_trouble": ""}


def test_operator_calls_end_to_end() -> None:
    kept = [wire.Comparison(request_id=str(number), at_unix_ms=NOW_MS, confidence=0.25) for number in range(3)]
    with running_operator(FakeComparisons(kept)) as at, Operator(at.address, who="ann") as operator:
        assert [each.specialist for each in operator.breakers().breakers] == ["stl", "template", "debug"]
        held = operator.hold_breaker("template", "open", why="bad refresh")
        assert (held.hold, held.hold_by, held.hold_why) == ("open", "ann", "bad refresh")
        assert operator.release_breaker("template").hold == ""
        assert operator.set_knob("review.priority_floor", 5).value == 5
        assert next(each for each in operator.knobs() if each.name == "review.priority_floor").set_by == "ann"
        assert operator.release_knob("review.priority_floor").set_by == "configuration"
        assert operator.load_adapter("debug", "a/my-lora").adapter == "my-lora"
        assert operator.promote("debug", "my-lora", why="it is better").status == "serving"
        assert [each.number for each in operator.lanes("debug")] == [2, 1]
        assert operator.roll_back("debug").number == 1
        assert operator.drain("template-0").status == "drained_by_operator"
        assert operator.undrain("template-0").status == "serving"
        assert len(operator.replicas()) == 4
        assert operator.shadow_report(60).rows[0].compared == 3
        assert [each.confidence for each in operator.comparisons()] == [0.25] * 3
        entries = list(operator.audit(most=3))
        assert [each.what for each in entries] == ["undrain", "drain", "roll_back"]
        assert {(each.who, each.why) for each in entries} == {("ann", "by hand")}
        assert [each.what for each in operator.audit("debug")] == ["roll_back", "promote", "load_lane"]


def once_watched(at: OperatorHarness, change: Callable[[], object]) -> Thread:
    """Start and return a thread that makes the change as soon as a watcher is connected."""

    def wait_and_change() -> None:
        at.until(lambda: len(at.control.events) == 1)
        change()

    thread = Thread(target=wait_and_change)
    thread.start()
    return thread


def test_events_arrive_as_they_happen_until_closed() -> None:
    with running_operator() as at, Operator(at.address, who="ann") as operator:
        events = operator.events()
        changing = once_watched(at, lambda: operator.drain("stl"))
        event = next(events)
        changing.join(PATIENCE)
        assert event.audit is not None and (event.audit.what, event.audit.who) == ("drain", "ann")
        events.close()  # type: ignore[attr-defined]
        at.until(lambda: len(at.control.events) == 0)
        following = operator.events()
        changing = once_watched(at, lambda: operator.undrain("stl"))
        assert next(following).audit is not None
        changing.join(PATIENCE)
        at.stop()
        with pytest.raises(ReplicaLost, match="was lost in the middle"):
            next(following)


def test_operator_name_defaults_to_user_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        default_operator_name().endswith(f"@{socket.gethostname()}") and len(default_operator_name().split("@")[0]) > 0
    )

    def unknown_user() -> str:
        raise KeyError("no such user")

    monkeypatch.setattr("getpass.getuser", unknown_user)
    assert default_operator_name().startswith("uid-")
    with Operator("127.0.0.1:1") as operator:
        assert operator.who == default_operator_name()


def test_operator_refusals_are_typed_and_name_the_problem() -> None:
    with running_operator() as at, Operator(at.address, who="ann") as operator:
        with pytest.raises(NotFound, match=r"no 'templat'.*did you mean template\?"):
            operator.hold_breaker("templat", "open", why="x")
        with pytest.raises(InvalidRequest, match="is not held") as conflict:
            operator.release_breaker("stl")
        assert conflict.value.reason == "conflict"
        for call in (
            lambda: operator.set_knob("review.priority_floor", "much"),  # type: ignore[arg-type]
            lambda: operator.drain("\udc80"),
            lambda: operator.hold_breaker("stl", "open", why="\udc80"),
            lambda: list(operator.audit(most=2**80)),
        ):
            with pytest.raises(InvalidRequest):
                call()
        at.control.store_trouble = "gone"
        with pytest.raises(Unavailable) as unavailable:
            operator.drain("stl")
        assert unavailable.value.reason == "store_unavailable" and "octet audit" not in str(unavailable.value)
    with pytest.raises(Cancelled, match="the client is closed"):
        operator.knobs()


def test_unreachable_router_and_server_without_operator_service() -> None:
    with Operator("127.0.0.1:1") as operator:
        with pytest.raises(Unavailable, match="start it with: octet serve") as caught:
            operator.drain("stl")
        assert "octet audit" not in str(caught.value), "an unreachable router cannot have made the change"
    with scripted() as script, Operator(script.address) as operator:
        for ask in (operator.knobs, lambda: operator.drain("stl"), lambda: list(operator.audit())):
            with pytest.raises(InvalidRequest, match=r"has no octet\.v1\.Operator"):
                ask()


class SilentServer:
    """A server that breaks off every call, as a router that dies does. It counts the calls."""

    def __init__(self) -> None:
        self.calls = 0

    def service(self, details: object) -> object:
        def handle(_: bytes, context: grpc.ServicerContext) -> bytes:
            self.calls += 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            return b""

        return grpc.unary_unary_rpc_method_handler(handle)


def test_lookups_are_retried_and_changes_are_not() -> None:
    dying = SilentServer()
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([dying])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with Operator(f"127.0.0.1:{port}") as operator:
            with pytest.raises(OctetError):
                operator.knobs()
            assert dying.calls == 3
            with pytest.raises(Unavailable, match="it is unknown whether the change was made: to see, run octet audit"):
                operator.drain("stl")
            assert dying.calls == 4
    finally:
        server.stop(0).wait(PATIENCE)


def test_operator_timeout_ends_slow_calls() -> None:
    with running_operator() as at, Operator(at.address, timeout=0.3) as operator, pytest.raises(DeadlineExceeded):
        next(operator.events())
