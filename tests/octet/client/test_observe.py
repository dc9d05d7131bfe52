"""The SDK's records for operators contain every field of their messages, and each call sends its arguments."""

import json
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octet.client.errors import NotFound, Unavailable
from octet.client.operator import Operator, RequestExplanation
from octet.client.receipts import Receipt
from octet.client.records import Overview, OverviewHistory, Slo
from octet.client.wire_record import WireRecord
from octet.rpc.messages import message_to_json
from octet.v1 import error_pb2, specialist_pb2
from octet.v1 import operator_pb2 as wire
from tests.octet.cli.operate.scripted_router import router_served
from tests.octet.messages import messages, whole

KINDS: tuple[tuple[type[WireRecord], Any], ...] = (
    (Slo, wire.Slo),
    (Overview, wire.Overview),
    (OverviewHistory, wire.History),
)


def unspecified_is_empty(found: Any) -> Any:
    """Return the value with every label "unspecified" replaced by an empty string. The SDK changes no other label."""
    if isinstance(found, dict):
        return {name: unspecified_is_empty(each) for name, each in found.items()}
    if isinstance(found, list):
        return [unspecified_is_empty(each) for each in found]
    return "" if found == "unspecified" else found


@pytest.mark.parametrize(("kind", "message"), KINDS, ids=lambda each: each.__name__)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_every_field_of_a_message_is_a_field_of_its_record(kind: type[WireRecord], message: Any, data: Any) -> None:
    drawn = data.draw(messages(message) | whole(message))
    output = json.loads(json.dumps(kind.from_wire(drawn).to_dict()))
    assert output == json.loads(json.dumps(unspecified_is_empty(message_to_json(drawn))))


def test_unknown_enum_value_of_a_record_shows_its_number() -> None:
    trouble = wire.Trouble.FromString(b"\x08\x63")
    overview = Overview.from_wire(wire.Overview(troubles=[trouble]))
    assert overview.troubles[0].severity == "99"


@given(messages(wire.Story))
@settings(max_examples=20, deadline=None)
def test_explanation_contains_its_receipt_and_the_other_facts(drawn: wire.Story) -> None:
    scenario = RequestExplanation.from_wire(drawn)
    document = json.loads(json.dumps(scenario.to_dict()))
    assert document["receipt"] == json.loads(json.dumps(Receipt.from_wire(drawn.receipt).to_dict()))
    beside = message_to_json(drawn)
    assert (document["judged"], document["changes"]) == (beside["judged"], beside["changes"])
    assert (document["comparison"] is None) == (not drawn.HasField("comparison"))


@pytest.mark.parametrize("waited", [None, 0.0, 1.5])
def test_preempted_time_arrives(waited: float | None) -> None:
    usage = specialist_pb2.Usage(timings=specialist_pb2.Timings(total=2.0, preempted=waited))
    found = Receipt.from_wire(wire.Receipt(usage=usage))
    assert found.usage is not None and found.usage.timings.preempted == waited


def test_every_operator_call_sends_its_arguments() -> None:
    with router_served() as router, Operator(router.address, who="ann") as operator:
        assert [each.specialist for each in operator.slo()] == ["stl", "template"]
        assert [each.specialist for each in operator.slo("stl")] == ["stl"]
        assert operator.overview().ensemble == "test"
        assert operator.history(90.0).step_seconds == 5.0
        found = list(operator.receipts("stl", outcome="refused", most=7, before_unix_ms=9, tenant="acme"))
        assert [each.request_id for each in found] == ["spilled", "refused"]
        scenario = operator.explain("spilled", tenant="acme")
        assert (scenario.receipt.request_id, scenario.changes[0].who) == ("spilled", "ann")
        stream = operator.watch_overview()
        assert next(stream).ensemble == "test"
        stream.close()  # type: ignore[attr-defined]  # a generator
        assert router.asked == [
            wire.GetSloRequest(),
            wire.GetSloRequest(specialist="stl"),
            wire.GetOverviewRequest(),
            wire.GetHistoryRequest(last_seconds=90.0),
            wire.ListReceiptsRequest(most=7, specialist="stl", outcome="refused", before_unix_ms=9, tenant="acme"),
            wire.ExplainRequest(request_id="spilled", tenant="acme"),
            wire.WatchOverviewRequest(),
        ]


def test_operator_errors_are_typed() -> None:
    with router_served() as router, Operator(router.address, max_retries=0) as operator:
        router.refusals["Explain"] = (
            grpc.StatusCode.NOT_FOUND,
            error_pb2.Error(reason=error_pb2.ERROR_REASON_UNKNOWN_REQUEST, message="nothing is known of it"),
        )
        with pytest.raises(NotFound, match="nothing is known of it"):
            operator.explain("x")
        router.refusals["WatchOverview"] = (grpc.StatusCode.UNAVAILABLE, None)
        with pytest.raises(Unavailable):
            next(operator.watch_overview())
