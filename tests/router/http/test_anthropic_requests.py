"""Anthropic request bodies: their conversion and their errors."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octet.v1 import inference_pb2 as wire
from router.api.http.anthropic import parse_count_request, parse_message_request
from router.api.http.errors import ApiError
from tests.router.http.harness import HELLO, HttpHarness, HttpResponse, running_http_router
from tests.specialist.server.harness import running_replica, sim

GOOD: dict[str, Any] = {"model": "octet/writer", "max_tokens": 8, "messages": HELLO}
TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
FORM = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
PATHS = ("/v1/messages", "/v1/messages/count_tokens")


def ordered(**fields: Any) -> wire.InferRequest:
    (request,) = parse_message_request({**GOOD, **fields}, "id").requests
    return request


def said(*contents: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in contents]


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def test_conversation_with_tools_is_converted() -> None:
    use = {"type": "tool_use", "id": "call_1", "name": "look", "input": {"at": "é", "n": [1]}}
    failed = {"type": "tool_result", "tool_use_id": "call_2", "content": [text("no"), text("way")], "is_error": True}
    request = ordered(
        system="be brief",
        messages=said(
            ("user", "look"),
            ("assistant", [text("I "), text("look"), use, {**use, "id": "call_2", "input": {}}]),
            ("user", [{"type": "tool_result", "tool_use_id": "call_1", "content": "seen"}, failed, text("and now?")]),
        ),
        tools=[TOOL, {"name": "rest", "input_schema": {}, "strict": True, "cache_control": {"type": "ephemeral"}}],
        tool_choice={"type": "tool", "name": "look", "disable_parallel_tool_use": True},
    )
    assert [(each.role, each.content, each.tool_call_id) for each in request.messages] == [
        ("system", "be brief", ""),
        ("user", "look", ""),
        ("assistant", "I \nlook", ""),
        ("tool", "seen", "call_1"),
        ("tool", "Error: no\nway", "call_2"),
        ("user", "and now?", ""),
    ]
    calls = [(each.id, each.name, each.arguments) for each in request.messages[2].tool_calls]
    assert calls == [("call_1", "look", '{"at": "é", "n": [1]}'), ("call_2", "look", "{}")]
    tools = [(each.name, each.description, json.loads(each.parameters), each.strict) for each in request.tools]
    assert tools == [("look", "Looks.", {"type": "object"}, False), ("rest", "", {}, True)]
    assert request.tool_choice == wire.ToolChoice(mode=wire.ToolChoice.REQUIRED, name="look", one_at_most=True)


@pytest.mark.parametrize(
    ("choice", "mode"),
    [
        (None, None),
        ({"type": "auto"}, wire.ToolChoice.AUTO),
        ({"type": "any"}, wire.ToolChoice.REQUIRED),
        ({"type": "none"}, wire.ToolChoice.NONE),
    ],
)
def test_every_tool_choice_is_converted(choice: Any, mode: Any) -> None:
    request = ordered(tools=[TOOL], tool_choice=choice)
    assert request.HasField("tool_choice") == (mode is not None)
    assert request.tool_choice == wire.ToolChoice(mode=mode)


def test_tool_choice_none_without_tools_is_ignored() -> None:
    assert not ordered(tool_choice={"type": "none"}).HasField("tool_choice")


def test_adjacent_turns_of_one_role_are_merged_unless_they_call_tools() -> None:
    use = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
    turns = said(("user", "a"), ("user", [text("b")]), ("assistant", [use]), ("assistant", "c"), ("user", "d"))
    roles = [(each.role, each.content) for each in ordered(messages=turns).messages]
    assert roles == [("user", "a\nb"), ("assistant", ""), ("assistant", "c"), ("user", "d")]


def test_output_format_becomes_a_structure() -> None:
    schema = {"type": "object", "properties": {"ä": {}}}
    request = ordered(output_config={"format": {"type": "json_schema", "schema": schema}})
    assert json.loads(request.structure.json_schema) == schema


def test_count_request_has_the_same_prompt() -> None:
    counted = parse_count_request({"model": "octet/writer", "messages": HELLO, "system": "s", "tools": [TOOL]}, "id")
    assert not counted.stream and not counted.requests[0].HasField("max_tokens")
    whole = ordered(system="s", tools=[TOOL])
    whole.ClearField("max_tokens")
    assert counted.requests == (whole,)


def block(**fields: Any) -> dict[str, Any]:
    return {"messages": said(("user", [fields]))}


def calling(**fields: Any) -> dict[str, Any]:
    return {"tools": [{**TOOL, **fields}]}


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"max_tokens": None}, "max_tokens", "missing"),
    ({"max_tokens": "8"}, "max_tokens", "a whole number"),
    ({"model": None}, "model", "missing"),
    ({"messages": None}, "messages", "at least one"),
    ({"messages": []}, "messages", "at least one"),
    ({"messages": [3]}, "messages[0]", "an object"),
    ({"messages": said(("king", "x"))}, "messages[0].role", "one of user"),
    ({"messages": said(("user", "x"), ("assistant", "The answer is"))}, "messages", "not continued"),
    ({"messages": said(("user", 3))}, "messages[0].content", "text"),
    ({"messages": [{"role": "user", "content": "x", "name": "me"}]}, "messages[0].name", "not a field"),
    (block(type="image", source={}), "messages[0].content[0].type", "image"),
    (block(type="document", source={}), "messages[0].content[0].type", "not supported"),
    (block(type="thinking", thinking="x"), "messages[0].content[0].type", "not supported"),
    (block(type="tool_use", id="1", name="x", input={}), "messages[0].content[0].type", "assistant's"),
    (block(type="text"), "messages[0].content[0].text", "missing"),
    (block(type="text", text="x", citations=[{}]), "messages[0].content[0].citations", "not support citations"),
    (block(type="tool_result"), "messages[0].content[0].tool_use_id", "missing"),
    ({"system": [{"type": "image"}]}, "system[0].type", "not supported"),
    ({"system": 3}, "system", "text"),
    ({"temperature": 1.5}, "temperature", "[0, 1]"),
    ({"stop_sequences": "x"}, "stop_sequences", "a list"),
    ({"metadata": {"session_id": "x"}}, "metadata.session_id", "not a field"),
    ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking", "without a separate"),
    ({"service_tier": "priority"}, "service_tier", "there is one"),
    ({"container": "x"}, "container", "executes no code"),
    ({"mcp_servers": [{}]}, "mcp_servers", "calls no MCP servers"),
    ({"n": 2}, "n", "not a field"),
    ({"cache_control": 3}, "cache_control", "an object"),
    ({"output_config": {"format": {"type": "regex"}}}, "output_config.format.type", "json_schema"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema", "missing"),
    ({"octet": {"prio": 1}}, "octet.prio", "one of intent"),
    ({"model": "octet/writer:a", "octet": {"adapters": ["b"]}}, "octet.adapters", "left out"),
    ({"output_config": FORM, "octet": {"structure": {"regex": "a"}}}, "output_config.format", "octet.structure"),
    ({"octet": {"structure": {"regex": "a", "choice": ["b"]}}}, "octet.structure", "exactly one of the keys"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type", "only the caller's own tools"),
    (calling(input_schema=None), "tools[0].input_schema", "missing"),
    (calling(input_schema={"maximum": 1e999}), "tools[0].input_schema", "64 bits"),
    (calling(name=None), "tools[0].name", "missing"),
    (calling(defer_loading=True), "tools[0].defer_loading", "not supported"),
    (calling(allowed_callers=["code_execution_20250825"]), "tools[0].allowed_callers", "not supported"),
    (calling(input_examples=[{}]), "tools[0].input_examples", "not supported"),
    ({"tool_choice": {"type": "any"}}, "tool_choice", "there are no tools"),
    ({**calling(), "tool_choice": {"type": "some"}}, "tool_choice.type", "one of auto"),
    ({**calling(), "tool_choice": {"type": "tool"}}, "tool_choice.name", "missing"),
    ({**calling(), "tool_choice": {"type": "any", "name": "look"}}, "tool_choice.name", "unless"),
]


@pytest.mark.parametrize(("fields", "param", "words"), WRONG)
def test_invalid_or_unsupported_field_is_named(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        ordered(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert words in str(caught.value) and param in str(caught.value)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, "authentication_error"),
        (403, "permission_error"),
        (408, "invalid_request_error"),
        (422, "invalid_request_error"),
        (499, "api_error"),
        (500, "api_error"),
        (503, "api_error"),
    ],
)
def test_every_status_has_an_anthropic_error_type(status: int, kind: str) -> None:
    result = msgspec.to_builtins(ApiError(status, "no", code="why").anthropic_envelope("id"))
    error = {"type": kind, "message": "no", "details": {"error_code": "why", "param": None}}
    assert result == {"type": "error", "error": error, "request_id": "id"}


class SharedRouter:
    """A router that all examples share. Its event loop runs only during requests."""

    def __init__(self, runner: asyncio.Runner, fronted: HttpHarness) -> None:
        self._runner = runner
        self._fronted = fronted

    def post(self, body: Any, path: str) -> HttpResponse:
        return self._runner.run(self._fronted.post(json.dumps(body).encode(), path))


@pytest.fixture(scope="module")
def shared_router() -> Iterator[SharedRouter]:
    async def opened(stack: AsyncExitStack) -> HttpHarness:
        served = await stack.enter_async_context(running_replica(sim()))
        return await stack.enter_async_context(running_http_router({"writer": [served.address]}))

    stack = AsyncExitStack()
    with asyncio.Runner() as runner:
        try:
            yield SharedRouter(runner, runner.run(opened(stack)))
        finally:
            runner.run(stack.aclose())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_p": 2}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"metadata": {"user_id": "x" * 257}}, "metadata.user_id"),
        ({"octet": {"priority": 10}}, "octet.priority"),
        ({"octet": {"session_id": "a\nb"}}, "octet.session_id"),
        ({"octet": {"structure": {"choice": []}}}, "octet.structure.choice"),
        ({"messages": said(("user", "word " * 800))}, "messages"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"x": "y" * 70_000}}}},
         "output_config.format.schema"),
    ],
)  # fmt: skip
def test_refusals_use_the_field_names_of_the_dialect(shared_router: SharedRouter, fields: Any, param: str) -> None:
    response = shared_router.post({**GOOD, **fields}, PATHS[0])
    assert response.status == 400
    error = response.anthropic_error
    assert error["details"]["param"] == param and error["type"] == "invalid_request_error"
    assert param in error["message"] or error["details"]["error_code"] == "context_length_exceeded"


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_use", "tool_result", "image"]) | ANYTHING},
    optional={
        "text": st.text(max_size=9) | ANYTHING,
        "id": st.just("1") | ANYTHING,
        "name": st.just("look") | ANYTHING,
        "input": st.just({}) | ANYTHING,
        "tool_use_id": st.just("1") | ANYTHING,
        "content": st.just("x") | ANYTHING,
        "cache_control": st.just({"type": "ephemeral"}) | ANYTHING,
    },
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system"]) | ANYTHING,
            "content": st.text(max_size=9) | st.lists(BLOCKS, max_size=3) | ANYTHING,
        }
    ),
    max_size=3,
)
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["octet/writer", "octet", "octet/poet", "octet/writer:a"]) | ANYTHING,
        "max_tokens": st.integers(1, 4) | ANYTHING,
        "messages": st.just(HELLO) | MESSAGES | ANYTHING,
        "system": st.text(max_size=9) | st.lists(BLOCKS, max_size=2) | ANYTHING,
        "stream": st.booleans() | ANYTHING,
        "temperature": st.floats(0, 1) | ANYTHING,
        "top_k": ANYTHING,
        "top_p": ANYTHING,
        "stop_sequences": st.lists(st.text(max_size=3), max_size=3) | ANYTHING,
        "metadata": st.just({"user_id": "u"}) | ANYTHING,
        "tools": st.just([]) | ANYTHING,
        "tool_choice": ANYTHING,
        "thinking": ANYTHING,
        "output_config": ANYTHING,
        "octet": st.dictionaries(st.sampled_from(["priority", "seed", "intent", "exclude"]), ANYTHING, max_size=2),
    },
)
NEARLY = BODIES.map(lambda body: {**GOOD, **body})


@settings(max_examples=75, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(body=NEARLY | BODIES | ANYTHING, path=st.sampled_from(PATHS))
def test_any_json_gets_an_answer_or_an_error(shared_router: SharedRouter, body: Any, path: str) -> None:
    response = shared_router.post(body, path)
    if response.status != 200:
        assert response.status in (400, 404, 413, 422), response.body
        assert response.anthropic_error["type"] in ("invalid_request_error", "not_found_error", "request_too_large")
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert response.body.decode().split("\n\n")[-2].startswith("event: message_stop\n")
    else:
        assert response.json.get("type") == "message" or set(response.json) == {"input_tokens"}
