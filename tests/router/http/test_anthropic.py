"""Anthropic's unmodified client gets correct answers and raises the expected exceptions."""

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from octet.rpc.refusal import Refusal, draining, engine_failed, queue_full
from octet.v1 import inference_pb2
from octet.v1.specialist_pb2 import (
    FINISH_REASON_LENGTH,
    FINISH_REASON_STOP,
    Chunk,
    GenerateRequest,
    ToolCallPart,
    Usage,
)
from router.routing.validation import REQUEST_BYTES
from tests.later import Later
from tests.router.http.harness import HELLO, SLOW, HttpResponse, answer_with, running_http_router
from tests.router.serving.harness import infer_request
from tests.router.serving.spy import ACCEPTED, CHUNK, USAGE, running_spy
from tests.router.serving.test_faults import refusing
from tests.specialist.server.harness import QUICK, running_replica, sim

if TYPE_CHECKING:
    import anthropic
else:
    anthropic = Later("anthropic")

CHAT: dict[str, Any] = {"model": "octet/writer", "messages": HELLO, "max_tokens": 8}
PATH = "/v1/messages"


def named_events(response: HttpResponse) -> list[tuple[str, Any]]:
    found = [event.split("\n") for event in response.body.decode().split("\n\n") if event]
    assert all(len(lines) == 2 for lines in found)
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in found]


async def test_message_equals_the_grpc_answer_and_has_a_receipt() -> None:
    async with running_replica(sim(QUICK)) as served, running_http_router({"writer": [served.address]}) as fronted:
        own = {"octet": {"seed": 7}}
        raw = await fronted.anthropic.messages.with_raw_response.create(**CHAT, extra_body=own)
        message = await raw.parse()
        (block,) = message.content
        assert block.type == "text" and block.text == (await fronted.routed.ask(infer_request(seed=7))).text
        assert (message.role, message.type, message.stop_reason) == ("assistant", "message", "max_tokens")
        assert (message.model, message.stop_sequence) == ("octet/writer", None)
        name = raw.headers["request-id"]
        assert message.id == f"msg_{name}" and raw.headers["x-octet-specialist"] == "writer"
        receipt = (await fronted.get(f"/v1/receipts/{message.id}")).json
        assert (receipt["request_id"], receipt["usage"]["completion_tokens"]) == (name, 8)
        assert message.usage.output_tokens == 8
        assert message.usage.input_tokens == receipt["usage"]["prompt_tokens"]
        assert message.model_extra == {}, "no extra fields were requested"


async def test_stream_events_add_up_to_the_whole_message() -> None:
    async with running_replica(sim(QUICK)) as served, running_http_router({"writer": [served.address]}) as fronted:
        own = {"octet": {"seed": 1, "receipt": True}}
        whole = await fronted.anthropic.messages.create(**CHAT, extra_body=own)
        assert whole.model_extra is not None and len(whole.model_extra["octet"]["receipts"]) == 1
        async with fronted.anthropic.messages.stream(**CHAT, extra_body=own) as stream:
            assert stream.response.headers["x-octet-specialist"] == "writer"
            pieces = [piece async for piece in stream.text_stream]
            final = await stream.get_final_message()
        (block,) = whole.content
        assert block.type == "text" and "".join(pieces) == block.text and len(pieces) > 1
        assert [each.text for each in final.content if each.type == "text"] == [block.text]
        assert (final.stop_reason, final.model) == (whole.stop_reason, whole.model)
        assert final.usage.output_tokens == whole.usage.output_tokens
        result = named_events(await fronted.ask(PATH, stream=True, **own))
        names = [name for name, _ in result]
        assert names[:2] == ["message_start", "content_block_start"]
        assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
        assert set(names[2:-3]) == {"content_block_delta"}
        assert all(content["type"] == name for name, content in result)
        assert result[0][1]["message"]["usage"]["input_tokens"] > 0
        assert result[-2][1]["octet"]["receipts"][0]["specialist"] == "writer"


async def test_every_option_arrives() -> None:
    async with running_spy() as spy, running_http_router({"writer": [spy.address]}) as fronted:
        await fronted.anthropic.messages.create(
            model="octet/writer:lora",
            max_tokens=5,
            system=[
                {"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "brief"},
            ],
            messages=[
                {"role": "user", "content": "zero"},
                {"role": "assistant", "content": [{"type": "text", "text": "well"}]},
                {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
                {"role": "user", "content": "three"},
            ],
            stop_sequences=["a", "b"],
            metadata={"user_id": "u"},
            service_tier="auto",
            thinking={"type": "disabled"},
            extra_body={
                "temperature": 0.5,
                "top_k": 40,
                "top_p": 0.9,
                "octet": {"priority": 7, "timeout_ms": 9000, "seed": 3},
            },
            extra_headers={"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"},
        )
        (asked,) = spy.asked
        assert [(each.role, each.content) for each in asked.chat.messages] == [
            ("system", "be\nbrief"),
            ("user", "zero"),
            ("assistant", "well"),
            ("user", "one\ntwo\nthree"),
        ]
        sampling = asked.sampling
        assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 40, 0.9)
        assert (list(asked.stop), asked.seed, asked.max_tokens, asked.priority) == (["a", "b"], 3, 5, 7)
        assert list(asked.adapters) == ["lora"] and 0 < asked.timeout_ms <= 9000
        assert spy.metadata[0]["traceparent"].startswith(f"00-{'a' * 32}-")
        service = fronted.routed.server.service
        assert (await service.receipt(asked.request_id)).session_source == "user"
        await fronted.anthropic.messages.create(
            **CHAT, metadata={"user_id": "u"}, extra_body={"octet": {"session_id": "s"}}
        )
        assert (await service.receipt(spy.asked[1].request_id)).session_id == "s"


ENDS = [
    (Usage(finish_reason=FINISH_REASON_STOP), "end_turn", None),
    (Usage(finish_reason=FINISH_REASON_LENGTH), "max_tokens", None),
    (Usage(finish_reason=FINISH_REASON_STOP, stop_string="END"), "stop_sequence", "END"),
    (Usage(finish_reason=FINISH_REASON_STOP, stop_string="x" * 256), "stop_sequence", "x" * 256),
]


async def test_stop_reason_and_cached_tokens_are_reported() -> None:
    async with running_spy() as spy, running_http_router({"writer": [spy.address]}) as fronted:
        for usage, reason, sequence in ENDS:
            usage.MergeFrom(Usage(prompt_tokens=50, cache_hit_tokens=32, completion_tokens=1))
            spy.behave = answer_with(Chunk(text="x"), usage=usage)
            whole = await fronted.anthropic.messages.create(**CHAT)
            async with fronted.anthropic.messages.stream(**CHAT) as stream:
                final = await stream.get_final_message()
            for message in (whole, final):
                assert (message.stop_reason, message.stop_sequence) == (reason, sequence)
                assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (18, 32)
                assert message.usage.output_tokens == 1
        spy.behave = answer_with(usage=Usage(finish_reason=FINISH_REASON_STOP))
        async with fronted.anthropic.messages.stream(**CHAT) as stream:
            assert (await stream.get_final_message()).content == [], "the answer has no text"
        assert (await fronted.anthropic.messages.create(**CHAT)).content == []


def called(index: int, *parts: str, name: str = "look") -> list[Chunk]:
    first = ToolCallPart(index=index, id=f"call_{index}", name=name, arguments=parts[0])
    rest = [ToolCallPart(index=index, arguments=part) for part in parts[1:]]
    return [Chunk(tool_calls=[part]) for part in (first, *rest)]


async def test_text_after_a_tool_call_in_one_chunk_reopens_no_block() -> None:
    rest = ToolCallPart(index=0, arguments=": 1}")
    second = ToolCallPart(index=1, id="call_1", name="find", arguments="{}")
    chunks = [*called(0, '{"x"'), Chunk(text="And ", tool_calls=[rest, second]), Chunk(text="so on.")]
    async with running_spy(answer_with(*chunks)) as spy, running_http_router({"writer": [spy.address]}) as fronted:
        whole = await fronted.anthropic.messages.create(**CHAT)
        async with fronted.anthropic.messages.stream(**CHAT) as stream:
            final = await stream.get_final_message()
        look = {"type": "tool_use", "id": "call_0", "name": "look", "input": {"x": 1}}
        find = {"type": "tool_use", "id": "call_1", "name": "find", "input": {}}
        texts = [{"type": "text", "text": text} for text in ("And ", "so on.")]
        for message in (whole, final):
            content = [each.model_dump(exclude_none=True) for each in message.content]
            assert content == [look, texts[0], find, texts[1]]
        result = named_events(await fronted.ask(PATH, stream=True))
        begun = [content["index"] for name, content in result if name == "content_block_start"]
        assert begun == [0, 1, 2, 3]


@pytest.mark.parametrize("before", [[Chunk(text="Let me "), Chunk(text="see.")], []])
async def test_tool_calls_are_separate_blocks(before: list[Chunk]) -> None:
    chunks = [*before, *called(0, '{"x"', ": 1", "}"), *called(1, "", name="find")]
    async with running_spy(answer_with(*chunks)) as spy, running_http_router({"writer": [spy.address]}) as fronted:
        whole = await fronted.anthropic.messages.create(**CHAT)
        async with fronted.anthropic.messages.stream(**CHAT) as stream:
            final = await stream.get_final_message()
        look = {"type": "tool_use", "id": "call_0", "name": "look", "input": {"x": 1}}
        find = {"type": "tool_use", "id": "call_1", "name": "find", "input": {}}
        texts = [{"type": "text", "text": "Let me see."}] if before else []
        for message in (whole, final):
            content = [each.model_dump(exclude_none=True) for each in message.content]
            assert content == [*texts, look, find] and message.stop_reason == "tool_use"
        result = named_events(await fronted.ask(PATH, stream=True))
        begun = [content["index"] for name, content in result if name == "content_block_start"]
        ended = [content["index"] for name, content in result if name == "content_block_stop"]
        assert begun == ended == list(range(2 + bool(before)))
        written = [content["delta"]["partial_json"] for _, content in result if "partial_json" in str(content)]
        assert written == ['{"x"', ": 1", "}"]


async def test_text_after_a_tool_call_is_a_block_and_a_truncated_call_is_dropped() -> None:
    cut = Usage(finish_reason=FINISH_REASON_LENGTH)
    between = [*called(0, "{}"), Chunk(text="and"), *called(1, '{"x": [1')]
    async with (
        running_spy(answer_with(*between, usage=cut)) as spy,
        running_http_router({"writer": [spy.address]}) as fronted,
    ):
        message = await fronted.anthropic.messages.create(**CHAT)
        assert [each.type for each in message.content] == ["tool_use", "text"], "the last call is incomplete"
        assert message.stop_reason == "max_tokens"
        result = named_events(await fronted.ask(PATH, stream=True))
        kinds = [content["content_block"]["type"] for name, content in result if name == "content_block_start"]
        assert kinds == ["tool_use", "text", "tool_use"]
        assert result[-2][1]["delta"]["stop_reason"] == "max_tokens"


async def test_token_count_equals_the_usage_of_an_answer() -> None:
    async with running_replica(sim(QUICK)) as served, running_http_router({"writer": [served.address]}) as fronted:
        asked: dict[str, Any] = {"model": "octet/writer", "messages": HELLO, "system": "be brief"}
        counted = await fronted.anthropic.messages.count_tokens(**asked)
        message = await fronted.anthropic.messages.create(**asked, max_tokens=1)
        cached = message.usage.cache_read_input_tokens or 0
        assert counted.input_tokens == message.usage.input_tokens + cached > 0
        with pytest.raises(anthropic.NotFoundError):
            await fronted.anthropic.messages.count_tokens(**{**asked, "model": "octet/poet"})
        with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
            await fronted.anthropic.messages.count_tokens(**asked, extra_body={"max_tokens": 1})
        response = await fronted.post(json.dumps(asked).encode(), f"{PATH}/count_tokens")
        assert response.json == {"input_tokens": counted.input_tokens}
        assert response.headers["x-octet-specialist"] == "writer" and response.headers["request-id"]


async def test_token_count_is_cancelled_when_the_caller_disconnects() -> None:
    async with running_spy() as spy, running_http_router({"writer": [spy.address]}) as fronted:
        counting = asyncio.create_task(
            fronted.anthropic.messages.count_tokens(model="octet/writer", messages=[*HELLO])  # type: ignore[list-item]  # as dicts
        )
        await fronted.routed.until(lambda: spy.counts)
        assert len(fronted.routed.server.live) == 1
        counting.cancel()
        await fronted.routed.idle()


def fails() -> list[tuple[Refusal, "type[anthropic.APIStatusError]", int, str]]:
    return [
        (queue_full("waiting", 1, 1.2), anthropic.RateLimitError, 429, "rate_limit_error"),
        (engine_failed("x"), anthropic.InternalServerError, 500, "api_error"),
        (draining(), anthropic.InternalServerError, 503, "api_error"),
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_failure_before_the_first_token_has_its_own_status(stream: bool) -> None:
    async with running_spy() as spy, running_http_router({"writer": [spy.address]}) as fronted:
        for refusal, kind, status, name in fails():
            spy.behave = refusing(refusal)
            with pytest.raises(kind) as caught:
                await fronted.anthropic.messages.create(**CHAT, stream=stream)
            assert (caught.value.status_code, caught.value.type) == (status, name)
            assert caught.value.request_id and caught.value.error_code
            if status == 429:
                said = caught.value.response.headers
                assert (said["retry-after"], said["retry-after-ms"]) == ("2", "1200")
                assert caught.value.error_code == "queue_full"


async def test_malformed_requests_get_the_same_envelope() -> None:
    async with running_replica(sim()) as served, running_http_router({"writer": [served.address]}) as fronted:
        large = "x" * REQUEST_BYTES
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            await fronted.anthropic.messages.create(**{**CHAT, "messages": [{"role": "user", "content": large}]})
        body = b'{"a": "' + 2 * large.encode() + b'"}'
        assert "prompt is too long" in (await fronted.post(body, PATH)).anthropic_error["message"]
        cases = {
            400: await fronted.post(b"no JSON", PATH),
            404: await fronted.get(f"{PATH}/batches"),
            405: await fronted.get(PATH),
            415: await fronted.post(b"{}", PATH, **{"content-type": "text/plain"}),
        }
        kinds = {404: "not_found_error"}
        for status, response in cases.items():
            assert response.status == status
            assert response.anthropic_error["type"] == kinds.get(status, "invalid_request_error")
        response = await fronted.get("/v1/messagesque")
        assert response.error and "request-id" not in response.headers, "this path belongs to another vendor's API"


async def test_deadline_is_504_with_the_partial_answer_and_no_retry() -> None:
    behave = answer_with(Chunk(text="so far"), seconds=60)
    async with running_spy(behave) as spy, running_http_router({"writer": [spy.address]}) as fronted:
        patient = fronted.anthropic.with_options(max_retries=2)
        late = {"octet": {"timeout_ms": 3000}}
        with pytest.raises(anthropic.APIStatusError) as caught:
            await patient.messages.create(**CHAT, extra_body=late)
        assert isinstance(caught.value, anthropic.InternalServerError)
        assert (caught.value.status_code, caught.value.type) == (504, "timeout_error") and len(spy.asked) == 1
        body: Any = caught.value.body
        assert body["error"]["partial"] == [{"type": "text", "text": "so far"}]
        with pytest.raises(anthropic.APIStatusError) as caught:
            async with patient.messages.stream(**CHAT, extra_body=late) as stream:
                assert [piece async for piece in stream.text_stream] == ["so far"]
        assert caught.value.type == "timeout_error"
        await fronted.routed.idle()


async def test_failed_stream_ends_with_an_error_event() -> None:
    behave = answer_with(Chunk(text="so far"), fails=engine_failed("x"))
    async with running_spy(behave) as spy, running_http_router({"writer": [spy.address]}) as fronted:
        result = named_events(await fronted.ask(PATH, stream=True))
        names = [name for name, _ in result]
        assert names == ["message_start", "content_block_start", "content_block_delta", "error"]
        assert result[-1][1]["error"]["type"] == "api_error" and result[-1][1]["type"] == "error"
        with pytest.raises(anthropic.APIStatusError) as caught:
            _ = [each async for each in await fronted.anthropic.messages.create(**CHAT, stream=True)]
        assert caught.value.error_code == "engine_failed"


async def test_no_bytes_are_sent_before_the_first_token() -> None:
    may_speak = asyncio.Event()

    async def behave(_: GenerateRequest, context: Any) -> None:
        await context.write(ACCEPTED)
        await may_speak.wait()
        await context.write(CHUNK)
        await context.write(USAGE)

    async with running_spy(behave) as spy, running_http_router({"writer": [spy.address]}) as fronted:
        body = json.dumps({**CHAT, "stream": True}).encode()
        head = f"POST {PATH} HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        async with fronted.connected(head.encode() + body) as reader:
            await fronted.routed.until(lambda: spy.num_live == 1)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.3)
            assert (await fronted.get("/healthz")).status == 200
            may_speak.set()
            assert b"200" in await reader.readline()


@pytest.mark.parametrize("stream", [False, True])
async def test_disconnect_leaves_the_replica_idle(stream: bool) -> None:
    async with running_replica(sim(SLOW)) as served, running_http_router({"writer": [served.address]}) as fronted:
        create = fronted.anthropic.messages.create
        asked = asyncio.create_task(create(**{**CHAT, "max_tokens": 400}, stream=stream))
        await fronted.routed.until(lambda: served.server.handler.num_live == 1)
        (live,) = fronted.routed.server.live
        if stream:
            answered = await asked
            assert isinstance(answered, anthropic.AsyncStream)
            await anext(aiter(answered))
            await answered.close()
        else:
            asked.cancel()
        await fronted.routed.idle()
        await served.idle()
        served.check_whole()
        receipt = await fronted.routed.server.service.receipt(live.request_id)
        assert receipt.error.reason == inference_pb2.ERROR_REASON_CANCELLED
