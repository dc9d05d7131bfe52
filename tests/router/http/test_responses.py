"""OpenAI's Responses API with OpenAI's own client: answers, streams, structure and tools."""

import asyncio
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import TypeAdapter

from octet.rpc.refusal import engine_failed
from octet.v1 import specialist_pb2
from octet.v1.specialist_pb2 import Chunk, TokenLogprob, TokenLogprobs
from tests.later import Later
from tests.router.http.harness import SLOW, HttpHarness, answer_with, running_http_router
from tests.router.http.test_openai_structure import SCHEMA as SIZE
from tests.router.http.test_openai_structure import Report
from tests.router.http.test_openai_tools import SCHEMA, check, tooled
from tests.router.serving.spy import running_spy
from tests.specialist.server.harness import QUICK, running_replica, sim

if TYPE_CHECKING:
    import openai
else:
    openai = Later("openai")

ASKED: dict[str, Any] = {"model": "octet/writer", "input": "hello", "max_output_tokens": 8}
PATH = "/v1/responses"
WEATHER: Any = {"type": "function", "name": "weather", "description": "Of a town.", "parameters": SCHEMA}
CLOCK: Any = {"type": "function", "name": "clock", "parameters": None, "strict": None}
NAMED: Any = {"type": "function", "name": "weather"}
TEXT_EVENTS = [
    *("response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"),
    *("response.output_text.delta", "response.output_text.done", "response.content_part.done"),
    "response.output_item.done",
]
CALL_EVENTS = [
    *("response.created", "response.in_progress", "response.output_item.added"),
    *("response.function_call_arguments.delta", "response.function_call_arguments.done"),
    "response.output_item.done",
]


@cache
def event_type() -> TypeAdapter[Any]:
    """Return the type of all events. Importing and building it is slow."""
    from openai.types.responses import ResponseStreamEvent

    return TypeAdapter(ResponseStreamEvent)


async def read_events(fronted: HttpHarness, **asked: Any) -> list[Any]:
    """Return the events of a raw stream. Each must have every field that OpenAI's types require, and its number."""
    body = json.dumps({**ASKED, **asked, "stream": True}).encode()
    found = []
    for number, event in enumerate((await fronted.post(body, PATH)).body.decode().split("\n\n")[:-1]):
        name, data = event.split("\n")
        content = json.loads(data.removeprefix("data: "))
        assert name == f"event: {content['type']}" and content["sequence_number"] == number
        found.append(event_type().validate_python(content))
    return found


def kinds(events: list[Any]) -> list[str]:
    """Return the types of the events, with each run of equal types as one."""
    names = [event.type for event in events]
    return [name for index, name in enumerate(names) if index == 0 or names[index - 1] != name]


async def test_response_equals_the_chat_answer_and_is_complete() -> None:
    async with running_replica(sim(QUICK)) as served, running_http_router({"writer": [served.address]}) as fronted:
        raw = (await fronted.post(json.dumps({**ASKED, "metadata": {"a": "b"}}).encode(), PATH)).json
        answer = openai.types.responses.Response.model_validate(raw, strict=True)
        chat = await fronted.openai.chat.completions.create(
            model="octet/writer", messages=[{"role": "user", "content": "hello"}], max_tokens=8
        )
        assert answer.output_text == chat.choices[0].message.content and answer.model == "octet/writer"
        assert (answer.status, answer.incomplete_details and answer.incomplete_details.reason) == (
            *("incomplete", "max_output_tokens"),
        )
        assert answer.usage is not None and chat.usage is not None and answer.metadata == {"a": "b"}
        assert (answer.usage.input_tokens, answer.usage.output_tokens) == (chat.usage.prompt_tokens, 8)
        receipt = (await fronted.get(f"/v1/receipts/{answer.id}")).json
        assert receipt["usage"]["completion_tokens"] == 8


async def test_stream_has_every_event_and_adds_up_to_the_whole_answer() -> None:
    async with running_replica(sim(QUICK)) as served, running_http_router({"writer": [served.address]}) as fronted:
        whole = await fronted.openai.responses.create(**ASKED, store=False)
        events = await read_events(fronted, store=False)
        assert kinds(events) == [*TEXT_EVENTS, "response.incomplete"]
        deltas = "".join(each.delta for each in events if each.type == "response.output_text.delta")
        last = events[-1].response
        assert deltas == events[-4].text == last.output_text == whole.output_text
        (item,) = last.output
        assert events[2].item.id == events[-2].item.id == item.id and item.status == "incomplete"
        assert last.usage.output_tokens == 8 and (last.status, last.store) == ("incomplete", False)
        async with fronted.openai.responses.stream(
            **ASKED, extra_body={"octet": {"structure": {"choice": ["yes"]}}}
        ) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_response()
        assert (final.status, final.output_text) == ("completed", "yes")


async def test_structured_answers_are_parsed_whole_and_streamed() -> None:
    async with (
        running_replica(sim(QUICK, context=1024)) as served,
        running_http_router({"writer": [served.address]}) as fronted,
    ):
        asked = {**ASKED, "max_output_tokens": 300}
        parsed = await fronted.openai.responses.parse(**asked, text_format=Report)
        assert isinstance(parsed.output_parsed, Report) and parsed.text is not None
        assert parsed.text.format is not None and parsed.text.format.type == "json_schema"
        async with fronted.openai.responses.stream(**asked, text_format=Report) as stream:
            async for _ in stream:
                pass
            assert (await stream.get_final_response()).output_parsed == parsed.output_parsed
        free: Any = {"format": {"type": "json_object"}, "verbosity": "low"}
        assert (await fronted.openai.responses.create(**asked, text=free)).output_text.startswith("{")
        with pytest.raises(openai.BadRequestError, match=r"text\.format") as caught:
            await fronted.openai.responses.create(
                **asked, text={"format": {"type": "json_schema", "name": "x", "schema": {"type": "nothing"}}}
            )
        assert caught.value.param == "text.format"
        both = {"octet": {"structure": {"regex": "a"}}}
        with pytest.raises(openai.BadRequestError, match=r"left out if octet\.structure"):
            shape: Any = {"format": {"type": "json_schema", "name": "x", "schema": SIZE}}
            await fronted.openai.responses.create(**asked, text=shape, extra_body=both)


async def test_tool_calls_go_round_by_items_and_by_previous_response(tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        **{"model": "octet/writer", "input": "hello", "max_output_tokens": 300},
        **{"tools": [WEATHER, CLOCK], "parallel_tool_calls": False},
    }
    async with tooled(tmp_path) as fronted:
        create = fronted.openai.responses.create
        events = await read_events(fronted, **asked, tool_choice=NAMED)
        assert kinds(events) == [*CALL_EVENTS, "response.completed"]
        first = events[-1].response
        (call,) = first.output
        assert (call.type, call.name, call.status) == ("function_call", "weather", "completed")
        check(call.name, call.arguments)
        parts = [each.delta for each in events if each.type == "response.function_call_arguments.delta"]
        assert len(parts) > 1 and "".join(parts) == events[-3].arguments == call.arguments
        (whole,) = (await create(**asked, tool_choice={"type": "function", "name": "clock"})).output
        assert whole.type == "function_call" and (whole.name, whole.status) == ("clock", "completed")
        check(whole.name, whole.arguments)

        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
        thought: Any = {"type": "reasoning", "id": "rs_1", "summary": []}
        again: Any = [{"role": "user", "content": "hello"}, thought, call.to_dict(), result]
        reference: Any = {"type": "item_reference", "id": call.id}
        short = {**asked, "max_output_tokens": 8}
        by_items = await create(**{**short, "input": again})
        by_id = await create(**{**short, "input": [result]}, previous_response_id=first.id)
        by_reference = await create(**{**short, "input": [*again[:1], reference, result]})
        answered: Any = {"role": "assistant", "tool_calls": [_chat_call(call)]}
        functions: Any = [{"type": "function", "function": {**tool, "type": None}} for tool in (WEATHER, CLOCK)]
        chat = await fronted.openai.chat.completions.create(
            model="octet/writer",
            messages=[*again[:1], answered, {"role": "tool", "tool_call_id": call.call_id, "content": "rain"}],
            tools=functions,
            parallel_tool_calls=False,
            max_tokens=8,
        )
        assert chat.usage is not None
        for answer in (by_items, by_id, by_reference):
            assert answer.usage is not None and answer.usage.input_tokens == chat.usage.prompt_tokens
            assert answer.output_text == (chat.choices[0].message.content or "")
        cut = await create(**{**asked, "max_output_tokens": 30}, tool_choice=NAMED)
        assert (cut.status, cut.output[-1].to_dict()["status"]) == ("incomplete", "incomplete")
        await create(**{**short, "input": "go on"}, previous_response_id=cut.id)


def _chat_call(call: Any) -> Any:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


async def test_log_probabilities_belong_to_the_text() -> None:
    pieces = [b"\xe2", b"\x82\xac", b"!"]
    logprobs = [TokenLogprobs(piece=each, chosen=-1.0, top=[TokenLogprob(piece=each, logprob=-1.0)]) for each in pieces]
    chunks = [Chunk(text=text, logprobs=[one]) for text, one in zip(("", "€", "!"), logprobs, strict=True)]
    async with running_spy(answer_with(*chunks)) as spy, running_http_router({"writer": [spy.address]}) as fronted:
        wanted: Any = {"top_logprobs": 1, "include": ["message.output_text.logprobs"]}
        answer = await fronted.openai.responses.create(**ASKED, **wanted)
        part: Any = answer.output[0].content[0]
        assert (part.text, [bytes(each.bytes) for each in part.logprobs]) == ("€!", pieces)
        assert [each.top_logprobs[0].logprob for each in part.logprobs] == [-1.0] * 3
        deltas = [each for each in await read_events(fronted, **wanted) if each.type == "response.output_text.delta"]
        assert [(each.delta, len(each.logprobs)) for each in deltas] == [("€", 2), ("!", 1)]
        plain = await fronted.openai.responses.create(**ASKED)
        assert plain.output[0].content[0].logprobs == []


async def test_empty_answer_is_an_empty_message() -> None:
    async with running_spy(answer_with()) as spy, running_http_router({"writer": [spy.address]}) as fronted:
        answer = await fronted.openai.responses.create(**ASKED)
        assert (answer.status, answer.output_text, len(answer.output)) == ("completed", "", 1)
        without_delta = [name for name in TEXT_EVENTS if not name.endswith("delta")]
        assert kinds(await read_events(fronted)) == [*without_delta, "response.completed"]


async def test_failure_in_a_stream_is_raised_and_ends_it() -> None:
    failing = answer_with(Chunk(text="so"), fails=engine_failed("it broke"))
    async with running_spy(failing) as spy, running_http_router({"writer": [spy.address]}) as fronted:
        with pytest.raises(openai.APIError, match="it broke"):
            async for _ in await fronted.openai.responses.create(**ASKED, stream=True):
                pass
        events = await read_events(fronted)
        assert kinds(events)[-2:] == ["error", "response.failed"]
        failed = events[-1].response
        assert (failed.status, failed.error.code, failed.output_text) == ("failed", "server_error", "so")
        assert (await fronted.get(f"{PATH}/{failed.id}")).status == 404, "a failed response is not stored"


async def test_closing_the_stream_cancels_the_answer() -> None:
    async with running_replica(sim(SLOW)) as served, running_http_router({"writer": [served.address]}) as fronted:
        stream = await fronted.openai.responses.create(**{**ASKED, "max_output_tokens": 64}, stream=True)
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        await fronted.routed.idle()
        receipts = (await fronted.get("/v1/receipts?limit=1")).json["receipts"]
        assert receipts[0]["error"]["reason"] == "cancelled"


async def test_eight_streams_at_once_are_all_whole() -> None:
    async with running_replica(sim(QUICK)) as served, running_http_router({"writer": [served.address]}) as fronted:
        several = await asyncio.gather(*(read_events(fronted) for _ in range(8)))
        assert len({events[-1].response.output_text for events in several}) == 1
        assert len({events[-1].response.id for events in several}) == 8


async def test_usage_counts_what_the_replica_counts() -> None:
    usage = specialist_pb2.Usage(
        finish_reason=specialist_pb2.FINISH_REASON_STOP, prompt_tokens=9, completion_tokens=2, cache_hit_tokens=4
    )
    async with (
        running_spy(answer_with(Chunk(text="yes"), usage=usage)) as spy,
        running_http_router({"writer": [spy.address]}) as fronted,
    ):
        used = (await fronted.openai.responses.create(**ASKED)).usage
        assert used is not None and (used.input_tokens, used.output_tokens, used.total_tokens) == (9, 2, 11)
        assert (used.input_tokens_details.cached_tokens, used.output_tokens_details.reasoning_tokens) == (4, 0)
