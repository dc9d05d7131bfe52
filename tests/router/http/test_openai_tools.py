"""Tools with OpenAI's own client, a real router and a real model."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from octet.clock import SystemClock
from specialist.server.native_replica import create_native_replica
from specialist.server.settings import ReplicaSettings
from tests.later import Later
from tests.models.tool_model import tool_model
from tests.router.http.harness import HELLO, HttpHarness, running_http_router
from tests.specialist.server.harness import QUICK, running_replica, sim

if TYPE_CHECKING:
    import openai
else:
    openai = Later("openai")

SCHEMA = {
    "type": "object",
    "properties": {"town": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["town", "days"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Of a town.", "parameters": SCHEMA}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
CHAT: dict[str, Any] = {
    "model": "octet/writer",
    "messages": HELLO,
    "max_tokens": 300,
    "tools": [WEATHER, CLOCK],
    "parallel_tool_calls": False,
}
NAMED: Any = {"type": "function", "function": {"name": "weather"}}


@asynccontextmanager
async def tooled(folder: Path, **how: Any) -> AsyncIterator[HttpHarness]:
    settings = ReplicaSettings(
        name="writer", model=tool_model(folder, **how), num_blocks=512, kernel="fused", threads=1
    )
    async with (
        running_replica(lambda: create_native_replica(settings, SystemClock()), piece_gap=0.0) as served,
        running_http_router({"writer": [served.address]}) as fronted,
    ):
        yield fronted


def check(name: str, arguments: str) -> None:
    schema = {"weather": SCHEMA, "clock": {"type": "object", "maxProperties": 0}}[name]
    Draft202012Validator(schema).validate(json.loads(arguments))


@pytest.mark.parametrize("special", [False, True])
async def test_required_tool_call_is_made(tmp_path: Path, special: bool) -> None:
    async with tooled(tmp_path, special=special) as fronted:
        create = fronted.openai.chat.completions.create
        for seed, choice in enumerate((NAMED, "required", NAMED)):
            asked = {**CHAT, "seed": seed, "temperature": 1.0, "tool_choice": choice}
            answer = (await create(**asked)).choices[0]
            assert (answer.finish_reason, answer.message.content) == ("tool_calls", None)
            assert answer.message.tool_calls is not None
            (call,) = answer.message.tool_calls
            assert call.type == "function" and call.id.startswith("call_")
            assert choice == "required" or call.function.name == "weather"
            check(call.function.name, call.function.arguments)
            async with fronted.openai.chat.completions.stream(**asked) as stream:
                events = [event async for event in stream]
                final = (await stream.get_final_completion()).choices[0]
            assert final.message.tool_calls is not None and final.finish_reason == "tool_calls"
            assert final.message.tool_calls[0].function.arguments == call.function.arguments
            parts = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
            least = 2 if call.function.name == "weather" else 1  # The arguments of `clock` are too short to be split.
            assert len(parts) >= least, "arguments must be streamed"


async def test_response_format_beside_tools_applies_to_text(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    async with tooled(tmp_path) as fronted:
        create = fronted.openai.chat.completions.create
        for seed in range(2):
            asked = {**CHAT, "seed": seed, "temperature": 1.0, "max_tokens": 40, "response_format": form}
            answer = (await create(**asked)).choices[0]
            if answer.finish_reason == "stop":
                assert json.loads(answer.message.content or "") in ({"n": 1}, {"n": 2})
        forced = (await create(**{**CHAT, "response_format": form, "tool_choice": NAMED})).choices[0]
        assert forced.finish_reason == "tool_calls" and forced.message.content is None


async def test_tool_call_stream_has_openai_deltas(tmp_path: Path) -> None:
    async with tooled(tmp_path) as fronted:
        asked = {**CHAT, "tool_choice": NAMED, "stream": True}
        events = (await fronted.ask(**asked)).events
        deltas = [event["choices"][0]["delta"] for event in events[:-1]]
        assert deltas[0]["role"] == "assistant" and events[-1] == "[DONE]"
        parts = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
        assert parts[0]["type"] == "function" and parts[0]["function"]["name"] == "weather" and parts[0]["id"]
        assert all(part["index"] == 0 for part in parts)
        assert all(set(part) == {"index", "function"} for part in parts[1:])
        check("weather", "".join(part["function"]["arguments"] for part in parts))
        assert [event["choices"][0]["finish_reason"] for event in events[-2:-1]] == ["tool_calls"]
        assert deltas[0]["content"] is None and not any("content" in delta for delta in deltas[1:])
        short = (await fronted.ask(**{**CHAT, "tool_choice": NAMED, "max_tokens": 60})).json["choices"][0]
        assert short["finish_reason"] == "length"


async def test_conversation_continues_after_a_tool_result(tmp_path: Path) -> None:
    async with tooled(tmp_path) as fronted:
        create = fronted.openai.chat.completions.create
        first = (await create(**CHAT, tool_choice=NAMED)).choices[0].message
        assert first.tool_calls is not None
        result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "name": "weather", "content": "rain"}
        messages: Any = [*HELLO, first.model_dump(exclude_none=True), result]
        asked = {**CHAT, "messages": messages, "max_tokens": 8}
        whole = await create(**asked)
        assert whole.usage is not None
        without = await create(**{**asked, "messages": [*HELLO, first.model_dump(exclude_none=True)]})
        assert without.usage is not None and whole.usage.prompt_tokens > without.usage.prompt_tokens
        free = (await create(**asked, tool_choice="none")).usage
        assert free is not None and free.prompt_tokens < whole.usage.prompt_tokens, "the prompt must show no tools"


async def test_invalid_tools_name_the_field(tmp_path: Path) -> None:
    called = {
        "role": "assistant",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "clock", "arguments": "{}"}}],
    }
    result = {"role": "tool", "tool_call_id": "a", "content": "noon"}
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type", "functions"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "missing"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.function.name", "letters"),
        ({"tools": [CLOCK, CLOCK]}, "tools.function.name", "free of duplicate names"),
        ({"tools": [CLOCK] * 129}, "tools", "128"),
        ({"tools": [with_schema({"type": "string"})]}, "tools.function.parameters", "type object"),
        ({"tools": [with_schema({"enum": ["x" * 70_000]})]}, "tools.function.parameters", "65,536"),
        ({"tools": [with_schema({"not": {}})], "tool_choice": "required"}, "tools", "satisfies"),
        ({"tools": []}, "parallel_tool_calls", "no tools"),
        ({"tools": [], "tool_choice": "auto"}, "tool_choice", "there are no tools"),
        ({"tool_choice": "sometimes"}, "tool_choice", "required"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice.function.name", "one of the"),
        ({"messages": [*HELLO, result]}, "messages.tool_call_id", "an earlier unanswered call"),
        ({"messages": [*HELLO, called, result, result]}, "messages.tool_call_id", "an earlier unanswered call"),
        (
            {"messages": [*HELLO, called, {**result, "tool_call_id": None}]},
            "messages.tool_call_id",
            "set if the role is tool",
        ),
        ({"messages": [*HELLO, {**called, "role": "user", "content": "x"}]}, "messages.tool_calls", "assistant"),
        ({"messages": [*HELLO, calling("[1]")]}, "messages.tool_calls.function.arguments", "object"),
        ({"messages": [*HELLO, {"role": "function", "name": "x", "content": "y"}]}, "messages[1].role", "role tool"),
        ({"functions": [{"name": "x"}]}, "functions", "tools"),
    ]
    async with tooled(tmp_path) as fronted:
        for given, param, words in cases:
            with pytest.raises(openai.BadRequestError) as caught:
                await fronted.openai.chat.completions.create(**{**CHAT, **given})
            assert (caught.value.param, words in caught.value.message) == (param, True), (given, caught.value)


async def test_model_without_tool_support_refuses_tools() -> None:
    async with running_replica(sim(QUICK)) as served, running_http_router({"writer": [served.address]}) as fronted:
        create = fronted.openai.chat.completions.create
        with pytest.raises(openai.BadRequestError) as caught:
            await create(**CHAT)
        assert (caught.value.param, caught.value.code) == ("tools", "unsupported_parameter")
        assert "does not show tools to the model" in caught.value.message
        assert (await create(**CHAT, tool_choice="none")).choices[0].message.content is not None


def with_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "x", "parameters": schema}}


def calling(arguments: str) -> dict[str, Any]:
    call = {"id": "a", "type": "function", "function": {"name": "clock", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}
