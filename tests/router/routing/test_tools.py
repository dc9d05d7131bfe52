"""Tools are validated, are part of the request's digest, and are passed on unchanged."""

from typing import Any

import pytest

from octet.rpc.refusal import Refusal
from octet.v1 import inference_pb2 as wire
from router.routing.policy import RoutingPolicy
from tests.router.routing.ensembles import DIGEST, ENSEMBLE, opinion
from tests.router.routing.sample_requests import replica_request, validated_request
from tests.router.routing.sample_states import always, plan_case

POLICY = RoutingPolicy(ENSEMBLE)
SURE = opinion(algo=0.8, debug=0.15)
TOOL = wire.Tool(name="find-it_1", description="d", parameters='{"type": "object"}', strict=True)
ASKED = wire.Message(role="user", content="sort a vector of pairs")
CALLED = wire.Message(role="assistant", tool_calls=[wire.ToolCall(id="a", name="find-it_1", arguments="{}")])
TOOL_RESULT = wire.Message(role="tool", content="found", tool_call_id="a")
REQUIRED = wire.ToolChoice(mode=wire.ToolChoice.REQUIRED, one_at_most=True)


def test_tools_and_calls_are_passed_on_unchanged() -> None:
    ask = validated_request(messages=[ASKED, CALLED, TOOL_RESULT], tools=[TOOL], tool_choice=REQUIRED)
    assert ask.text == ASKED.content, "only user turns may decide"
    request = replica_request(ask, POLICY.decide(ask, SURE, DIGEST), ENSEMBLE.specialist("algo"), (), 1.0)
    assert list(request.chat.tools) == [TOOL] and request.chat.tool_choice == REQUIRED
    assert list(request.chat.messages)[-3:] == [ASKED, CALLED, TOOL_RESULT]


def test_tools_and_their_choice_are_in_the_requests_digest() -> None:
    asked: list[dict[str, Any]] = [
        {},
        {"tools": [TOOL]},
        {"tools": [wire.Tool(name="other")]},
        {"tools": [TOOL], "tool_choice": REQUIRED},
        {"tools": [TOOL], "tool_choice": wire.ToolChoice(name=TOOL.name)},
    ]
    digests = [
        POLICY.decide(validated_request(messages=[ASKED], **each), SURE, DIGEST).request_digest for each in asked
    ]
    assert len(set(digests)) == len(digests)


def test_an_answer_that_may_be_calls_is_neither_judged_nor_compared() -> None:
    unsure = {"algo": 0.3, "debug": 0.3}
    for tools, choice, judged in (
        ([], None, True),
        ([TOOL], None, False),
        ([TOOL], wire.ToolChoice(mode=wire.ToolChoice.NONE), True),
    ):
        asked: dict[str, Any] = {"messages": [ASKED], "tools": tools, "tool_choice": choice}
        made = plan_case(ENSEMBLE, sure=unsure, force_specialists=["algo"], **asked).plan(always)
        assert (made.shadow is not None or made.sample) == judged


def named(name: str) -> wire.Tool:
    return wire.Tool(name=name)


def calling(**call: str) -> wire.Message:
    return wire.Message(
        role="assistant", tool_calls=[wire.ToolCall(**{"id": "a", "name": "x", "arguments": "{}", **call})]
    )


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("tools", {"prompt": "x", "messages": [], "tools": [TOOL]}),
    ("tools", {"tools": [named(f"t{index}") for index in range(129)]}),
    ("tools", {"tools": [wire.Tool(name=f"t{index}", description="x" * 8000) for index in range(40)]}),
    *(("tools.name", {"tools": [named(name)]}) for name in ("", "a b", "é", "x" * 129, "a\n")),
    ("tools.name", {"tools": [TOOL, TOOL]}),
    ("tools.description", {"tools": [wire.Tool(name="x", description="x" * 8193)]}),
    *(
        ("tools.parameters", {"tools": [wire.Tool(name="x", parameters=schema)]})
        for schema in ("{", "[]", '{"type": "array"}', " " * 65_537, '{"a":' * 65 + "{}" + "}" * 65, '{"a": NaN}')
    ),
    ("tool_choice", {"tool_choice": REQUIRED}),
    ("tool_choice.name", {"tools": [TOOL], "tool_choice": wire.ToolChoice(name="other")}),
    ("messages.tool_calls", {"messages": [ASKED, wire.Message(role="user", tool_calls=CALLED.tool_calls)]}),
    ("messages.tool_calls.id", {"messages": [ASKED, calling(id="")]}),
    ("messages.tool_calls.id", {"messages": [ASKED, calling(id="x" * 129)]}),
    ("messages.tool_calls.id", {"messages": [ASKED, CALLED, CALLED]}),
    ("messages.tool_calls.name", {"messages": [ASKED, calling(name="a b")]}),
    ("messages.tool_calls.arguments", {"messages": [ASKED, calling(arguments="[]")]}),
    ("messages.tool_calls.arguments", {"messages": [ASKED, calling(arguments="")]}),
    ("messages.tool_call_id", {"messages": [ASKED, TOOL_RESULT]}),
    ("messages.tool_call_id", {"messages": [ASKED, CALLED, TOOL_RESULT, TOOL_RESULT]}),
    ("messages.tool_call_id", {"messages": [ASKED, CALLED, wire.Message(role="tool", content="x")]}),
    ("messages.tool_call_id", {"messages": [ASKED, wire.Message(role="user", content="x", tool_call_id="a")]}),
]


@pytest.mark.parametrize(("field", "fields"), REFUSED)
def test_an_invalid_tool_names_its_field(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as refused:
        validated_request(**{"messages": [ASKED], **fields})
    assert refused.value.error.field == field and refused.value.error.limit
    assert len(refused.value.error.value) < 200


def test_tool_names_may_be_as_long_as_vendors_allow() -> None:
    assert validated_request(messages=[ASKED], tools=[named("x" * 128)])
