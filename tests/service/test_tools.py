"""A replica whose model calls tools, over gRPC and through the router's, and one whose model does not."""

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
from jsonschema import Draft202012Validator

import octet
from octet.clock import SystemClock
from octet.v1 import inference_pb2, specialist_pb2
from octet.v1 import specialist_pb2 as wire
from specialist.service.native_replica import native_replica
from specialist.service.settings import ReplicaSettings
from tests.models.tool_model import tool_model
from tests.router.service.harness import routing
from tests.service.harness import ask, run, serving
from tests.test_docs import example_in, run_example

SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2, 3]}}, "required": ["n"], "additionalProperties": False}
TOOL = wire.Tool(name="pick", parameters=json.dumps(SCHEMA))
HELLO = wire.Message(role="user", content="hello")


def asking(**chat: Any) -> wire.GenerateRequest:
    tools = {"messages": [HELLO], "tools": [TOOL], "tool_choice": wire.ToolChoice(name="pick"), **chat}
    return wire.GenerateRequest(chat=wire.Chat(**tools), max_tokens=200)


def test_the_same_calls_at_every_door(tmp_path: Path) -> None:
    settings = ReplicaSettings(name="writer", model=tool_model(tmp_path), num_blocks=512, threads=1)

    async def story() -> None:
        async with (
            serving(lambda: native_replica(settings, SystemClock()), piece_gap=0.0) as served,
            routing({"writer": [served.address]}) as routed,
        ):
            heard = await ask(served.client, asking())
            assert heard.error is None and heard.text == ""
            parts = [part for chunk in heard.chunks for part in chunk.tool_calls]
            assert len(parts) > 1 and parts[0].name == "pick" and not any(part.id for part in parts[1:])
            arguments = "".join(part.arguments for part in parts)
            Draft202012Validator(SCHEMA).validate(json.loads(arguments))
            await served.idle()

            request = inference_pb2.InferRequest(
                messages=[HELLO],
                tools=[TOOL],
                tool_choice=wire.ToolChoice(name="pick"),
                force_specialists=["writer"],
                max_tokens=200,
            )
            whole = await routed.call("Infer", request, inference_pb2.InferResponse)
            assert [(call.name, call.arguments) for call in whole.tool_calls] == [("pick", arguments)]
            async with octet.AsyncClient(routed.address) as client:
                tools: Any = [{"name": "pick", "parameters": SCHEMA}]
                said: Any = [{"role": "user", "content": "hello"}]
                async with client.stream(
                    messages=said, tools=tools, tool_choice={"name": "pick"}, force="writer", max_tokens=200
                ) as answer:
                    chunks = [chunk async for chunk in answer]
            assert [call.arguments for call in answer.tool_calls] == [arguments] and not answer.text
            assert sum(len(chunk.tool_calls) for chunk in chunks) > 1

            example = example_in("docs/tools.md").replace("localhost:50051", routed.address)
            options = 'tools=[weather], force="writer", max_tokens=200'
            await asyncio.to_thread(run_example, example.replace("tools=[weather]", options), tmp_path)

            bad = wire.Tool(name="x", parameters='{"not": {}}')
            heard = await ask(served.client, asking(tools=[bad], tool_choice=wire.ToolChoice(name="x")))
            assert heard.error is not None and heard.error.error is not None
            assert (heard.error.code, heard.error.error.field) == (grpc.StatusCode.INVALID_ARGUMENT, "tools")

    run(story())


def test_a_model_whose_template_shows_no_tools_refuses_them_and_their_history() -> None:
    async def story() -> None:
        async with serving() as served:
            call = wire.ToolCall(id="a", name="pick", arguments="{}")
            talk = [
                HELLO,
                wire.Message(role="assistant", tool_calls=[call]),
                wire.Message(role="tool", tool_call_id="a"),
            ]
            for request in (asking(), wire.GenerateRequest(chat=wire.Chat(messages=talk))):
                heard = await ask(served.client, request)
                assert heard.error is not None and heard.error.error is not None
                assert heard.error.code == grpc.StatusCode.INVALID_ARGUMENT
                assert heard.error.error.reason == specialist_pb2.ERROR_REASON_NO_TOOLS
            closed = wire.ToolChoice(mode=wire.ToolChoice.NONE)
            assert (await ask(served.client, asking(tool_choice=closed))).error is None

    run(story())
