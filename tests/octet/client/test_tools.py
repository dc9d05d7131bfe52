"""Tools and tool calls in the SDK."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import octet
from octet.client.answer import AnswerBuilder
from octet.client.options import ToolCallBuffer
from octet.client.request import prepare_request
from octet.v1 import inference_pb2 as wire

CALL = octet.ToolCall("a", "find", '{"x": 1}')


def test_options_have_their_wire_form() -> None:
    tools = [{"name": "find", "description": "d", "parameters": {"type": "object"}, "strict": True}, {"name": "stop"}]
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "content": "y", "tool_call_id": "a"},
    ]
    sent = prepare_request(None, {"messages": messages, "tools": tools, "tool_choice": "required"}).message
    assert sent == wire.InferRequest(
        messages=[
            wire.Message(role="user", content="x"),
            wire.Message(role="assistant", tool_calls=[wire.ToolCall(id="a", name="find", arguments='{"x": 1}')]),
            wire.Message(role="tool", content="y", tool_call_id="a"),
        ],
        tools=[
            wire.Tool(name="find", description="d", parameters='{"type": "object"}', strict=True),
            wire.Tool(name="stop"),
        ],
        tool_choice=wire.ToolChoice(mode=wire.ToolChoice.REQUIRED),
    )
    named = prepare_request(None, {"tool_choice": {"name": "find", "one_at_most": True}}).message
    assert named.tool_choice == wire.ToolChoice(name="find", one_at_most=True)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("tools", [{}]),
        ("tools", [{"name": "x", "parametres": {}}]),
        ("tools", [{"name": "x", "parameters": {"maximum": float("nan")}}]),
        ("tools", ["x"]),
        ("tool_choice", "sometimes"),
        ("tool_choice", {"function": "x"}),
        ("messages", [{"role": "assistant"}]),
        ("messages", [{"role": "assistant", "tool_calls": [{"id": "a"}]}]),
    ],
)
def test_invalid_option_is_refused(option: str, value: Any) -> None:
    with pytest.raises(octet.InvalidRequest, match=option):
        prepare_request(None, {option: value})


@given(st.lists(st.lists(st.text(max_size=3), min_size=1, max_size=4), max_size=4))
def test_tool_calls_are_assembled_from_their_parts(calls: list[list[str]]) -> None:
    buffer = ToolCallBuffer()
    for index, parts in enumerate(calls):
        for number, part in enumerate(parts):
            head = {"id": f"id{index}", "name": f"f{index}"} if number == 0 else {}
            buffer.add([wire.ToolCallPart(index=index, arguments=part, **head)])
    expected = [octet.ToolCall(f"id{index}", f"f{index}", "".join(parts)) for index, parts in enumerate(calls)]
    assert list(buffer.calls()) == expected and len(buffer) == len(expected)


def test_an_answer_contains_its_tool_calls() -> None:
    builder = AnswerBuilder()
    for part in (wire.ToolCallPart(id="a", name="find", arguments='{"x"'), wire.ToolCallPart(arguments=": 1}")):
        builder.add(wire.InferEvent(chunk=wire.Chunk(tool_calls=[part])))
    builder.add(wire.InferEvent(receipt=wire.Receipt()))
    assert builder.build("").tool_calls == (CALL,)
