"""`octet.v1.Operator` over a real socket: its calls are validated, bounded and atomic."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octet.v1 import error_pb2
from octet.v1 import operator_pb2 as wire
from router.api.grpc.services import OPERATOR_SERVICE
from router.api.operations import MAX_AUDIT
from router.observe.overview.shadow_agreement import ShadowTally
from tests.patience import PATIENCE
from tests.router.operator.fake_control import NOW_MS, FakeComparisons
from tests.router.operator.harness import COUNTS, SERVICE, OperatorHarness, error_of, running_operator

CHANGE = {"who": "ann", "why": "drill"}
CHANGES: dict[str, tuple[Any, type[Any]]] = {
    "HoldBreaker": (wire.HoldBreakerRequest(specialist="stl", hold="open", change=CHANGE), wire.BreakerInfo),
    "ReleaseBreaker": (wire.ReleaseBreakerRequest(specialist="stl", change=CHANGE), wire.BreakerInfo),
    "SetKnob": (wire.SetKnobRequest(name="review.priority_floor", value=5, change=CHANGE), wire.KnobInfo),
    "ReleaseKnob": (wire.ReleaseKnobRequest(name="review.priority_floor", change=CHANGE), wire.KnobInfo),
    "LoadAdapter": (wire.LoadLaneRequest(specialist="stl", path="lora", change=CHANGE), wire.LaneInfo),
    "PromoteLane": (wire.PromoteLaneRequest(specialist="stl", name="lora", change=CHANGE), wire.LaneInfo),
    "RollBackLane": (wire.RollBackLaneRequest(specialist="stl", change=CHANGE), wire.LaneInfo),
    "RefreshModel": (wire.RefreshModelRequest(specialist="stl", model="/new", change=CHANGE), wire.LaneInfo),
    "DrainReplica": (wire.DrainReplicaRequest(replica="stl", change=CHANGE), wire.ReplicaInfo),
    "UndrainReplica": (wire.UndrainReplicaRequest(replica="stl", change=CHANGE), wire.ReplicaInfo),
}


@pytest.fixture(scope="module")
def shared() -> Iterator[OperatorHarness]:
    with running_operator() as one:
        yield one


def call(at: OperatorHarness, name: str, ask: Any, answer: type[Any]) -> Any:
    with grpc.insecure_channel(at.address) as channel:
        raw = ask if isinstance(ask, bytes) else ask.SerializeToString()
        return channel.unary_unary(SERVICE + name, None, answer.FromString)(raw, timeout=PATIENCE)


def refused(at: OperatorHarness, name: str, ask: Any) -> error_pb2.Error:
    with pytest.raises(grpc.RpcError) as caught:
        call(at, name, ask, wire.Change)
    return error_of(caught.value)


def stream(channel: Any, name: str, ask: Any, answer: type[Any], **options: Any) -> Any:
    return channel.unary_stream(SERVICE + name, None, answer.FromString)(ask.SerializeToString(), **options)


def test_every_call_of_the_contract_is_served() -> None:
    described = {method.name for method in wire.DESCRIPTOR.services_by_name["Operator"].methods}
    with running_operator() as at:
        served = {name.rpartition("/")[2] for name in at.service.handler()._method_handlers}
    assert served == described and OPERATOR_SERVICE == "octet.v1.Operator"


def test_every_change_is_audited_published_and_shown() -> None:
    with running_operator() as at, grpc.insecure_channel(at.address) as channel:
        events = stream(channel, "WatchEvents", wire.WatchEventsRequest(), wire.OperatorEvent, timeout=PATIENCE)
        events.initial_metadata()
        for name, (ask, answer) in CHANGES.items():
            made = call(at, name, ask, answer)
            entry = next(events).audit
            assert entry == at.control.entries[-1] and (entry.who, entry.why) == ("ann", "drill")
            listed = [
                *call(at, "ListBreakers", wire.ListBreakersRequest(), wire.ListBreakersResponse).breakers,
                *call(at, "ListKnobs", wire.ListKnobsRequest(), wire.ListKnobsResponse).knobs,
                *call(at, "ListLanes", wire.ListLanesRequest(), wire.ListLanesResponse).lanes,
                *call(at, "ListReplicas", wire.ListReplicasRequest(), wire.ListReplicasResponse).replicas,
            ]
            assert made in listed
        written = list(stream(channel, "ListAudit", wire.ListAuditRequest(), wire.AuditEntry))
        assert written == at.control.entries[::-1] and len(written) == len(CHANGES)


@given(st.sampled_from(sorted(CHANGES)), st.data())
@settings(max_examples=60)
def test_invalid_change_is_refused_by_field_without_effect(
    shared: OperatorHarness, name: str, data: st.DataObject
) -> None:
    ask = type(CHANGES[name][0])()
    ask.CopyFrom(CHANGES[name][0])
    texts = [field.name for field in ask.DESCRIPTOR.fields if field.type == field.TYPE_STRING]
    field = data.draw(st.sampled_from([*texts, "change.who", "change.why"]))
    bad = data.draw(st.sampled_from(["x" * 5000, "two\nlines", "\x1b[2J", "ü" * 4000]))
    setattr(ask.change if field.startswith("change.") else ask, field.removeprefix("change."), bad)
    before = len(shared.control.entries)
    error = refused(shared, name, ask)
    assert (error.reason, error.field) == (error_pb2.ERROR_REASON_INVALID_FIELD, field)
    assert len(error.value) < 100 and error.limit and len(shared.control.entries) == before


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_numbers_out_of_range_are_refused(shared: OperatorHarness, value: float) -> None:
    knob = wire.SetKnobRequest(name="review.priority_floor", value=value, change=CHANGE)
    assert refused(shared, "SetKnob", knob).field == "value"
    assert refused(shared, "ShadowReport", wire.ShadowReportRequest(last_seconds=value)).field == "last_seconds"
    with grpc.insecure_channel(shared.address) as channel, pytest.raises(grpc.RpcError) as caught:
        list(stream(channel, "ListComparisons", wire.ListComparisonsRequest(last_seconds=value), wire.Comparison))
    assert error_of(caught.value).field == "last_seconds"


@pytest.mark.parametrize("most", [-1, MAX_AUDIT + 1, 2**62])
def test_an_invalid_limit_of_the_audit_listing_is_refused(shared: OperatorHarness, most: int) -> None:
    with grpc.insecure_channel(shared.address) as channel, pytest.raises(grpc.RpcError) as caught:
        list(stream(channel, "ListAudit", wire.ListAuditRequest(most=most), wire.AuditEntry))
    assert error_of(caught.value).field == "most"


def test_invalid_and_oversized_messages_are_refused(shared: OperatorHarness) -> None:
    for name in CHANGES:
        assert refused(shared, name, b"\xff\xff\xff").reason == error_pb2.ERROR_REASON_MALFORMED
        assert refused(shared, name, b"\x0a\x80\x80\x08" + b"x" * (1 << 17)).field == "request"


@pytest.mark.parametrize(
    ("name", "ask", "meant"),
    [
        ("HoldBreaker", wire.HoldBreakerRequest(specialist="templat", hold="open", change=CHANGE), "template"),
        ("ReleaseBreaker", wire.ReleaseBreakerRequest(specialist="debgu", change=CHANGE), "debug"),
        ("SetKnob", wire.SetKnobRequest(name="reviw.priority_floor", change=CHANGE), "review.priority_floor"),
        ("ReleaseKnob", wire.ReleaseKnobRequest(name="review.floor", change=CHANGE), "review.priority_floor"),
        ("ListLanes", wire.ListLanesRequest(specialist="tempalte"), "template"),
        ("DrainReplica", wire.DrainReplicaRequest(replica="templat-1", change=CHANGE), "template-1"),
        ("DrainReplica", wire.DrainReplicaRequest(replica="qqqqq", change=CHANGE), None),
    ],
)
def test_misspelt_name_gets_a_suggestion(shared: OperatorHarness, name: str, ask: Any, meant: str | None) -> None:
    error = refused(shared, name, ask)
    assert error.reason == error_pb2.ERROR_REASON_UNKNOWN_NAME and error.limit.startswith("one of ")
    assert error.message.endswith(f"; did you mean {meant}?") if meant else "did you mean" not in error.message


def test_unknown_adapter_gets_a_suggestion() -> None:
    with running_operator() as at:
        call(at, "LoadAdapter", CHANGES["LoadAdapter"][0], wire.LaneInfo)
        error = refused(at, "PromoteLane", wire.PromoteLaneRequest(specialist="stl", name="lroa", change=CHANGE))
    assert error.message.endswith("; did you mean lora?")


def test_without_the_store_a_change_is_refused_with_the_reason() -> None:
    with running_operator() as at:
        at.control.store_trouble = "the disk is full"
        assert refused(at, "HoldBreaker", CHANGES["HoldBreaker"][0]).reason == error_pb2.ERROR_REASON_STORE_UNAVAILABLE
        listed = call(at, "ListBreakers", wire.ListBreakersRequest(), wire.ListBreakersResponse)
    assert listed.store_trouble == "the disk is full" and not any(each.hold for each in listed.breakers)


def test_started_change_finishes_without_its_caller() -> None:
    with running_operator() as at, grpc.insecure_channel(at.address) as channel:

        async def hold_changes() -> None:
            at.control.slow = asyncio.Event()

        at.on_loop(hold_changes())
        method = channel.unary_unary(SERVICE + "HoldBreaker", None, wire.BreakerInfo.FromString)
        calling = method.future(CHANGES["HoldBreaker"][0].SerializeToString())
        at.until(lambda: at.service._api.num_changes == 1)
        num_tasks = len(asyncio.all_tasks(at.loop))
        calling.cancel()
        # The call is over. The task of the poll itself is left.
        at.until(lambda: len(asyncio.all_tasks(at.loop)) <= num_tasks)
        slow = at.control.slow
        assert slow is not None
        at.loop.call_soon_threadsafe(slow.set)
        at.until(lambda: not at.service._api.num_changes)
        assert [entry.what for entry in at.control.entries] == ["hold_breaker"]
        assert at.control.breakers()[0].hold == "open"


def test_number_of_watchers_is_bounded() -> None:
    with running_operator() as at, grpc.insecure_channel(at.address) as channel:

        def watch() -> Any:
            return stream(channel, "WatchEvents", wire.WatchEventsRequest(), wire.OperatorEvent, timeout=PATIENCE)

        watching = [watch() for _ in range(32)]
        for one in watching:
            one.initial_metadata()
        with pytest.raises(grpc.RpcError) as caught:
            next(watch())
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        for one in watching:
            one.cancel()
        at.until(lambda: not len(at.control.events))
        again = watch()
        again.initial_metadata()
        assert len(at.control.events) == 1
        at.loop.call_soon_threadsafe(at.control.events.close)
        assert list(again) == [], "the watch must end with the router"


def test_watcher_that_does_not_read_is_dropped_without_delaying_others() -> None:
    entry = wire.AuditEntry(why="x" * 60_000)
    with (
        running_operator(stall_seconds=2.0) as at,
        grpc.insecure_channel(at.address, [("grpc.use_local_subchannel_pool", 1)]) as idle_channel,
        grpc.insecure_channel(at.address, [("grpc.use_local_subchannel_pool", 1)]) as channel,
    ):
        idle = stream(idle_channel, "WatchEvents", wire.WatchEventsRequest(), wire.OperatorEvent, timeout=PATIENCE)
        idle.initial_metadata()
        other = stream(channel, "WatchEvents", wire.WatchEventsRequest(), wire.OperatorEvent, timeout=PATIENCE)
        other.initial_metadata()

        async def flood() -> None:
            async with asyncio.timeout(PATIENCE):
                while len(at.control.events) == 2:
                    at.control.events.publish(wire.OperatorEvent(audit=entry))
                    await asyncio.sleep(0.001)
            at.control.events.close()

        flooding = asyncio.run_coroutine_threadsafe(flood(), at.loop)
        assert sum(1 for _ in other) > 10, "the other watcher gets events all the time"
        flooding.result(PATIENCE)
        with pytest.raises(grpc.RpcError) as caught:
            list(idle)
        assert error_of(caught.value).reason == error_pb2.ERROR_REASON_CALLER_STALLED


def comparison(number: int, **more: Any) -> wire.Comparison:
    return wire.Comparison(request_id=str(number), at_unix_ms=NOW_MS - 1000 * number, **more)


def test_comparisons_are_read_in_order_and_on_demand() -> None:
    kept = [comparison(number, shadow="s" * 2000) for number in range(3000, 0, -1)]
    with running_operator(FakeComparisons(kept)) as at, grpc.insecure_channel(at.address) as channel:
        ask = wire.ListComparisonsRequest(last_seconds=100.5)
        assert list(stream(channel, "ListComparisons", ask, wire.Comparison)) == kept[-100:]
        at.rows.num_read = 0
        begun = stream(channel, "ListComparisons", wire.ListComparisonsRequest(), wire.Comparison)
        assert [next(begun) for _ in range(5)] == kept[:5]
        begun.cancel()
        at.until(lambda: at.rows.num_open == 0)
        assert at.rows.num_read < len(kept), "rows must be read on demand"


OUTCOMES = st.sampled_from(["passed", "failed", "skipped", "unavailable"])
COMPARISONS = st.lists(
    st.builds(
        wire.Comparison,
        intent=st.sampled_from(["", "review"]),
        primary=st.sampled_from(["stl", "debug"]),
        shadow=st.sampled_from(["debug", "stl+lora"]),
        why=st.sampled_from(["low_confidence", "fresh_lane"]),
        primary_outcome=OUTCOMES,
        shadow_outcome=OUTCOMES,
        agreed=st.booleans(),
        similarity=st.floats(0, 1),
    ),
    max_size=60,
)


@given(COMPARISONS)
def test_shadow_report_counts_every_comparison_once(given_: list[wire.Comparison]) -> None:
    report = ShadowTally()
    for one in given_:
        report.add(one)
    rows = report.rows()
    keys = [(row.intent, row.primary, row.shadow, row.why) for row in rows]
    counted = Counter((one.intent, one.primary, one.shadow, one.why) for one in given_)
    assert dict(zip(keys, (row.compared for row in rows), strict=True)) == counted
    assert [row.compared for row in rows] == sorted((row.compared for row in rows), reverse=True)
    for key, row in zip(keys, rows, strict=True):
        mine = [one for one in given_ if (one.intent, one.primary, one.shadow, one.why) == key]
        outcomes = Counter((one.primary_outcome, one.shadow_outcome) for one in mine)
        both, first = outcomes["passed", "passed"], outcomes["passed", "failed"]
        second, none = outcomes["failed", "passed"], outcomes["failed", "failed"]
        assert row.verified == both + first + second + none
        assert (row.primary_passed, row.shadow_passed) == (both + first, both + second)
        assert (row.only_primary_passed, row.only_shadow_passed) == (first, second)
        assert row.agreed == sum(one.agreed for one in mine)
        assert row.mean_similarity == pytest.approx(sum(one.similarity for one in mine) / len(mine))


def test_shadow_report_covers_the_requested_time() -> None:
    kept = [comparison(number, primary="stl") for number in (30, 20, 10)]
    with running_operator(FakeComparisons(kept)) as at:
        whole = call(at, "ShadowReport", wire.ShadowReportRequest(), wire.ShadowReportResponse)
        part = call(at, "ShadowReport", wire.ShadowReportRequest(last_seconds=25), wire.ShadowReportResponse)
    assert [row.compared for row in (*whole.rows, *part.rows)] == [3, 2] and whole.counts == COUNTS
