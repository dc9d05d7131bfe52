"""Tool calls through a replica's gRPC server and through the router, and a replica whose model has no tool template."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from threading import Event
from typing import Any

import grpc
from jsonschema import Draft202012Validator

import octet
from octet.clock import SystemClock
from octet.v1 import inference_pb2, specialist_pb2
from octet.v1 import specialist_pb2 as wire
from specialist.server.engine_thread import EngineReport
from specialist.server.native_replica import create_native_replica
from specialist.server.settings import ReplicaSettings
from tests.models.tool_model import tool_model
from tests.patience import PATIENCE
from tests.router.serving.harness import running_router
from tests.specialist.server.harness import ask, running_replica
from tests.test_docs import example_in, run_example

SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2, 3]}}, "required": ["n"], "additionalProperties": False}
TOOL = wire.Tool(name="pick", parameters=json.dumps(SCHEMA))
HELLO = wire.Message(role="user", content="hello")


def tool_request(**chat: Any) -> wire.GenerateRequest:
    tools = {"messages": [HELLO], "tools": [TOOL], "tool_choice": wire.ToolChoice(name="pick"), **chat}
    return wire.GenerateRequest(chat=wire.Chat(**tools), max_tokens=200)


async def test_same_calls_over_every_protocol(tmp_path: Path) -> None:
    settings = ReplicaSettings(name="writer", model=tool_model(tmp_path), num_blocks=512, kernel="fused", threads=1)
    async with (
        running_replica(lambda: create_native_replica(settings, SystemClock()), piece_gap=0.0) as served,
        running_router({"writer": [served.address]}) as routed,
    ):
        received = await ask(served.client, tool_request())
        assert received.error is None and received.text == ""
        parts = [part for chunk in received.chunks for part in chunk.tool_calls]
        assert parts and parts[0].name == "pick" and not any(part.id for part in parts[1:])
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
        assert "".join(part.arguments for chunk in chunks for part in chunk.tool_calls) == arguments

        example = example_in("docs/tools.md").replace("localhost:50051", routed.address)
        options = 'tools=[weather], force="writer", max_tokens=200'
        await asyncio.to_thread(run_example, example.replace("tools=[weather]", options), tmp_path)

        bad = wire.Tool(name="x", parameters='{"not": {}}')
        received = await ask(served.client, tool_request(tools=[bad], tool_choice=wire.ToolChoice(name="x")))
        assert received.error is not None and received.error.error is not None
        assert (received.error.code, received.error.error.field) == (grpc.StatusCode.INVALID_ARGUMENT, "tools")


async def test_tool_call_is_streamed_while_it_is_sampled(tmp_path: Path) -> None:
    """The engine is held before its last token until the caller has the first part of the tool call. The test calls the
    replica directly and through the router."""
    settings = ReplicaSettings(
        name="writer", model=tool_model(tmp_path), num_blocks=512, kernel="fused", threads=1, prefix_cache=False
    )
    async with (
        running_replica(lambda: create_native_replica(settings, SystemClock()), piece_gap=0.0) as served,
        running_router({"writer": [served.address]}) as routed,
        octet.AsyncClient(routed.address) as client,
    ):
        deliver, sampled = served.server.engine.deliver, list[int]()

        def deliver_and_count(report: EngineReport) -> None:
            # Tokens are recorded before their delivery: the test may read the list as soon as it has the answer.
            sampled.extend(token for _, update in report.updates for token in getattr(update, "tokens", ()))
            deliver(report)

        served.server.engine.deliver = deliver_and_count
        whole = await ask(served.client, tool_request())
        arguments = "".join(part.arguments for chunk in whole.chunks for part in chunk.tool_calls)
        await served.idle()
        expected = list(sampled)
        assert len(expected) > 2 and arguments

        async def directly() -> AsyncIterator[str]:
            async for event in served.client.generate(tool_request()):
                for part in event.chunk.tool_calls:
                    yield part.arguments

        async def through_the_router() -> AsyncIterator[str]:
            tools: Any = [{"name": "pick", "parameters": SCHEMA}]
            said: Any = [{"role": "user", "content": "hello"}]
            async with client.stream(
                messages=said, tools=tools, tool_choice={"name": "pick"}, force="writer", max_tokens=200
            ) as answer:
                async for chunk in answer:
                    for part in chunk.tool_calls:
                        yield part.arguments

        for parts in (directly(), through_the_router()):
            has_part, in_time = Event(), list[bool]()
            sampled.clear()

            def waits(report: EngineReport, has_part: Event = has_part, in_time: list[bool] = in_time) -> None:
                deliver_and_count(report)
                if len(sampled) == len(expected) - 1 and not in_time:
                    in_time.append(has_part.wait(PATIENCE))

            served.server.engine.deliver = waits
            received = ""
            async for part in parts:
                received += part
                has_part.set()
            assert in_time == [True], "the caller must get the first part before the last token is sampled"
            assert received == arguments
            await served.idle()
            assert sampled == expected


async def test_model_without_a_tool_template_refuses_tools_and_their_history() -> None:
    async with running_replica() as served:
        call = wire.ToolCall(id="a", name="pick", arguments="{}")
        talk = [
            HELLO,
            wire.Message(role="assistant", tool_calls=[call]),
            wire.Message(role="tool", tool_call_id="a"),
        ]
        for request in (tool_request(), wire.GenerateRequest(chat=wire.Chat(messages=talk))):
            received = await ask(served.client, request)
            assert received.error is not None and received.error.error is not None
            assert received.error.code == grpc.StatusCode.INVALID_ARGUMENT
            assert received.error.error.reason == specialist_pb2.ERROR_REASON_NO_TOOLS
        closed = wire.ToolChoice(mode=wire.ToolChoice.NONE)
        assert (await ask(served.client, tool_request(tool_choice=closed))).error is None
