"""OpenAI's unmodified client gets correct answers and raises the expected exceptions."""

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from octet.rpc.refusal import engine_failed, queue_full
from octet.v1 import inference_pb2, specialist_pb2
from octet.v1.specialist_pb2 import Chunk, TokenLogprob, TokenLogprobs, ToolCallPart
from tests.later import Later
from tests.router.http.harness import HELLO, SLOW, answer_with, running_http_router
from tests.router.serving.harness import RouterHarness, infer_request
from tests.router.serving.spy import running_spy
from tests.router.serving.test_faults import refusing
from tests.specialist.server.harness import QUICK, run, running_replica, sim

if TYPE_CHECKING:
    import openai
else:
    openai = Later("openai")

CHAT: dict[str, Any] = {"model": "octet/writer", "messages": HELLO, "max_tokens": 8}


async def through_grpc(routed: RouterHarness, **fields: Any) -> str:
    return (await routed.ask(infer_request("hello", **fields))).text


async def test_chat_equals_the_grpc_answer_and_has_a_receipt() -> None:
    async with running_replica(sim(QUICK)) as served, running_http_router({"writer": [served.address]}) as fronted:
        raw = await fronted.openai.chat.completions.with_raw_response.create(**CHAT, seed=7)
        answer = raw.parse()
        (choice,) = answer.choices
        assert choice.message.content == await through_grpc(fronted.routed, seed=7)
        assert (choice.message.role, choice.finish_reason) == ("assistant", "length")
        assert answer.usage is not None and answer.usage.completion_tokens == 8
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8
        assert answer.model == "octet/writer" and answer.id == f"chatcmpl-{raw.headers['x-request-id']}"
        assert raw.headers["x-octet-specialist"] == "writer"
        assert not hasattr(answer, "octet"), "no receipt was requested"
        for name in (answer.id, raw.headers["x-request-id"]):
            receipt = (await fronted.get(f"/v1/receipts/{name}")).json
            assert (receipt["request_id"], receipt["specialist"]) == (raw.headers["x-request-id"], "writer")
            assert receipt["usage"]["completion_tokens"] == 8
        for own in (f"msg_{raw.headers['x-request-id']}", "cmpl-mine"):
            await fronted.routed.call("Infer", infer_request(request_id=own, max_tokens=2), inference_pb2.InferResponse)
            assert (await fronted.get(f"/v1/receipts/{own}")).json["request_id"] == own, (
                "an exact id must be found first"
            )


@pytest.mark.parametrize("include_usage", [False, True])
async def test_stream_chunks_add_up_to_the_whole_answer(include_usage: bool) -> None:
    async with running_replica(sim(QUICK)) as served, running_http_router({"writer": [served.address]}) as fronted:
        whole = await fronted.openai.chat.completions.create(**CHAT, seed=1)
        stream = await fronted.openai.chat.completions.create(
            **CHAT,
            seed=1,
            stream=True,
            stream_options={"include_usage": include_usage},
            extra_body={"octet": {"receipt": True}},
        )
        assert stream.response.headers["x-octet-specialist"] == "writer"
        chunks = [chunk async for chunk in stream]
        assert all(chunk.choices for chunk in chunks[: -1 if include_usage else None])
        result = [chunk.choices[0] for chunk in chunks if chunk.choices]
        assert "".join(each.delta.content or "" for each in result) == whole.choices[0].message.content
        assert [each.delta.role for each in result] == ["assistant"] + [None] * (len(result) - 1)
        assert [each.finish_reason for each in result] == [None] * (len(result) - 1) + ["length"]
        assert (chunks[-1].usage is not None) == include_usage == (not chunks[-1].choices)
        if include_usage:
            assert chunks[-1].usage is not None and whole.usage is not None
            assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
        (receipt,) = chunks[-1].model_extra["octet"]["receipts"]
        assert f"chatcmpl-{receipt['request_id']}" == chunks[-1].id and receipt["decided_by"] == "forced"


async def test_choices_are_separate_requests_with_separate_seeds() -> None:
    async with (
        running_spy(answer_with(Chunk(text="a"), Chunk(text="b"))) as spy,
        running_http_router({"writer": [spy.address]}) as fronted,
    ):
        answer = await fronted.openai.chat.completions.create(**CHAT, n=3, seed=2**63 - 2)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert {choice.message.content for choice in answer.choices} == {"ab"}
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 6)
        seeds = {each.request_id: each.seed for each in spy.asked}
        name = answer.id.removeprefix("chatcmpl-")
        assert seeds == {name: 2**63 - 2, f"{name}-1": 2**63 - 1, f"{name}-2": -(2**63)}
        stream = await fronted.openai.chat.completions.create(**CHAT, n=2, stream=True)
        texts, ends = {0: "", 1: ""}, []
        async for chunk in stream:
            (choice,) = chunk.choices
            texts[choice.index] += choice.delta.content or ""
            ends += [choice.index] if choice.finish_reason == "stop" else []
        assert texts == {0: "ab", 1: "ab"} and sorted(ends) == [0, 1]


async def test_one_refused_choice_ends_all_choices() -> None:
    async def behave(request: specialist_pb2.GenerateRequest, context: Any) -> None:
        kind = refusing(engine_failed("x")) if request.request_id.endswith("-1") else answer_with(seconds=60)
        await kind(request, context)

    async with running_spy(behave) as spy, running_http_router({"writer": [spy.address]}) as fronted:
        with pytest.raises(openai.InternalServerError):
            await fronted.openai.chat.completions.create(**CHAT, n=2)
        await fronted.routed.idle()
        await fronted.routed.until(lambda: spy.num_live == 0)


async def test_every_option_arrives() -> None:
    async with (
        running_spy(answer_with(Chunk(text="x"))) as spy,
        running_http_router({"writer": [spy.address]}) as fronted,
    ):
        await fronted.openai.chat.completions.create(
            model="octet/writer:lora",
            messages=[
                {"role": "developer", "content": "be brief"},
                {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
            ],
            max_completion_tokens=5,
            temperature=0.5,
            top_p=0.9,
            presence_penalty=0.1,
            frequency_penalty=-0.2,
            logit_bias={"7": -100},
            stop=["a", "b"],
            seed=3,
            user="u",
            metadata={"session_id": "s", "other": "label"},
            response_format={"type": "text"},
            store=False,
            extra_body={"octet": {"priority": 7, "timeout_ms": 9000}, "unheard_of": {"is": "ignored"}},
            extra_headers={"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"},
        )
        (asked,) = spy.asked
        assert [(each.role, each.content) for each in asked.chat.messages] == [
            ("system", "be brief"),
            ("user", "one\ntwo"),
        ]
        sampling = asked.sampling
        assert (sampling.temperature, sampling.top_p) == (0.5, 0.9)
        assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.1, -0.2)
        assert [(each.token, each.bias) for each in sampling.logit_bias] == [(7, -100.0)]
        assert not sampling.HasField("num_logprobs")
        assert (list(asked.stop), asked.seed, asked.max_tokens, asked.priority) == (["a", "b"], 3, 5, 7)
        assert list(asked.adapters) == ["lora"] and 0 < asked.timeout_ms <= 9000
        assert spy.metadata[0]["traceparent"].startswith(f"00-{'a' * 32}-")
        receipt = await fronted.routed.call(
            "GetReceipt", inference_pb2.GetReceiptRequest(request_id=asked.request_id), inference_pb2.Receipt
        )
        assert (receipt.session_id, receipt.session_source) == ("s", "metadata")
        await fronted.openai.chat.completions.create(**CHAT, user="u")
        receipt = await fronted.routed.server.service.receipt(spy.asked[1].request_id)
        assert (receipt.session_id, receipt.session_source) == ("", "user"), "the user's id must stay private"


LIKELY = TokenLogprobs(
    chosen=-0.5, piece=b"\xc3", top=[TokenLogprob(token=1, logprob=-0.5, piece=b"\xc3"), TokenLogprob(logprob=-9e999)]
)


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_of_tokens_that_are_part_of_a_character(stream: bool) -> None:
    chunks = (Chunk(text="", token_ids=[1], logprobs=[LIKELY]), Chunk(text="é", token_ids=[2], logprobs=[LIKELY]))
    async with running_spy(answer_with(*chunks)) as spy, running_http_router({"writer": [spy.address]}) as fronted:
        chat = await fronted.ask(logprobs=True, top_logprobs=2, stream=stream)
        found = [chat.json] if not stream else [each for each in chat.events if each != "[DONE]"]
        result = [choice["logprobs"] for each in found for choice in each["choices"] if choice["logprobs"]]
        tokens = [token for each in result for token in each["content"]]
        assert len(tokens) == 2 and {token["logprob"] for token in tokens} == {-0.5}
        assert tokens[0]["token"] == "\ufffd" and tokens[0]["bytes"] == [0xC3]
        assert [top["logprob"] for top in tokens[0]["top_logprobs"]] == [-0.5, -9999.0]
        assert spy.asked[-1].sampling.num_logprobs == 2
        if not stream:
            plain = await fronted.openai.completions.create(model="octet/writer", prompt="é", logprobs=1)
            logprobs = plain.choices[0].logprobs
            assert logprobs is not None and logprobs.token_logprobs == [-0.5, -0.5]
            assert logprobs.tokens == ["\ufffd", "\ufffd"]


async def test_completions_of_several_prompts() -> None:
    async with running_replica(sim(QUICK)) as served, running_http_router({"writer": [served.address]}) as fronted:
        create = fronted.openai.completions.create
        answer = await create(model="octet/writer", prompt=["hello", "why?"], n=2, max_tokens=8, temperature=0)
        said = [choice.text for choice in answer.choices]
        assert said[0] == said[1] == await through_grpc(fronted.routed) != said[2] == said[3]
        assert answer.usage is not None and answer.usage.completion_tokens == 32
        stream = await create(model="octet/writer", prompt="hello", max_tokens=8, temperature=0, stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == said[0]


async def test_answer_ends_before_the_stop_string() -> None:
    async with running_replica(sim(QUICK)) as served, running_http_router({"writer": [served.address]}) as fronted:
        create = fronted.openai.chat.completions.create
        text = (await create(**CHAT)).choices[0].message.content
        assert text is not None
        cut = (await create(**CHAT, stop=text[4:6])).choices[0]
        assert (cut.message.content, cut.finish_reason) == (text[: text.index(text[4:6])], "stop")


@pytest.mark.parametrize(("arguments", "reason"), [('{"town": "Oslo"}', "tool_calls"), ('{"town": "Os', "stop")])
async def test_tool_call_truncated_by_a_stop_string_is_not_a_finish_reason(arguments: str, reason: str) -> None:
    call = ToolCallPart(index=0, id="call_0", name="weather", arguments=arguments)
    async with (
        running_spy(answer_with(Chunk(tool_calls=[call]))) as spy,
        running_http_router({"writer": [spy.address]}) as fronted,
    ):
        create = fronted.openai.chat.completions.create
        assert (await create(**CHAT)).choices[0].finish_reason == reason
        chunks = [chunk async for chunk in await create(**CHAT, stream=True)]
        assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, reason]


async def test_models_are_listed_and_unknown_models_are_404() -> None:
    async with running_replica(sim()) as served, running_http_router({"writer": [served.address]}) as fronted:
        client = fronted.openai
        assert [model.id async for model in client.models.list()] == ["octet", "octet/writer"]
        assert (await client.models.retrieve("octet/writer")).id == "octet/writer"
        for model in ("octet/poet", "gpt-4o", "octet/", "octet/WRITER", "octet/writer:absent"):
            with pytest.raises(openai.NotFoundError) as caught:
                await client.chat.completions.create(**{**CHAT, "model": model})
            assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
            with pytest.raises(openai.NotFoundError):
                await client.models.retrieve(model)


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        ({"temperature": 3}, "temperature", "temperature must be"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be"),
        ({"max_tokens": None, "max_completion_tokens": 0}, "max_completion_tokens", "max_completion_tokens must be"),
        ({"max_completion_tokens": 1}, "max_tokens", "if max_completion_tokens is given"),
        ({"top_logprobs": 2}, "top_logprobs", "unless logprobs is true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
        ({"n": 9}, "n", "[1, 8]"),
        ({"n": True}, "n", "a whole number"),
        ({"seed": 2**63}, "seed", "64 bits"),
        ({"stop": [""]}, "stop", "non-empty"),
        ({"stop": 3}, "stop", "text or a list"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "token ids"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "100"),
        ({"messages": []}, "messages", "at least one"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages", "a user message that is not empty"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", "one of system"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0].type",
            "text only",
        ),
        ({"tool_choice": "none"}, "tool_choice", "there are no tools"),
        ({"modalities": ["text", "audio"]}, "modalities", "text only"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "unless stream"),
        ({"extra_body": {"octet": {"priority": 10}}}, "octet.priority", "octet.priority must be"),
        ({"extra_body": {"octet": {"intnt": "x"}}}, "octet.intnt", "one of intent"),
        ({"extra_body": {"octet": {"exclude": ["writer"]}}}, "octet.exclude", "disjoint from"),
        ({"extra_body": {"octet": {"intent": "none-such"}}}, "octet.intent", "octet.intent must be"),
        ({"metadata": {"session_id": "a\nb"}}, "metadata.session_id", "printable"),
        ({"messages": [{"role": "user", "content": "word " * 800}]}, "messages", "tokens"),
    ],
)
def test_invalid_chat_request_names_the_field_and_the_limit(given: dict[str, Any], param: str, words: str) -> None:
    async def story() -> None:
        async with running_replica(sim()) as served, running_http_router({"writer": [served.address]}) as fronted:
            with pytest.raises(openai.BadRequestError) as caught:
                await fronted.openai.chat.completions.create(**{**CHAT, **given})
            assert caught.value.param == param and words in caught.value.message
            assert caught.value.type == "invalid_request_error"
            assert caught.value.request_id

    run(story())


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"echo": True}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a"] * 5, "n": 2}, "prompt"),
        ({"prompt": " "}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
def test_invalid_completion_request_names_the_field(given: dict[str, Any], param: str) -> None:
    async def story() -> None:
        async with running_replica(sim()) as served, running_http_router({"writer": [served.address]}) as fronted:
            with pytest.raises(openai.BadRequestError) as caught:
                await fronted.openai.completions.create(**{"model": "octet/writer", "prompt": "x", **given})
            assert caught.value.param == param

    run(story())


async def test_full_replica_answers_429_with_retry_after() -> None:
    full = sim(SLOW, max_running=1)
    async with (
        running_replica(full, max_waiting=1) as served,
        running_http_router({"writer": [served.address]}) as fronted,
    ):
        create = fronted.openai.chat.completions.create
        for _ in range(3):  # These answers are the ones that are measured.
            await create(**{**CHAT, "max_tokens": 3})
        asked = [asyncio.create_task(create(**{**CHAT, "max_tokens": 60, "seed": seed})) for seed in range(6)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, openai.RateLimitError)]
        assert refused and len(refused) < len(answers)
        for error in refused:
            after = int(error.response.headers["retry-after-ms"])
            assert after > 0 and int(error.response.headers["retry-after"]) == -(-after // 1000)
            assert error.type == "rate_limit_error" and error.code is not None


async def test_retry_after_is_rounded_up_and_left_out_without_measurements() -> None:
    for after, headers in ((1.2, ("2", "1200")), (None, (None, None))):
        async with (
            running_spy(refusing(queue_full("waiting", 1, after))) as spy,
            running_http_router({"writer": [spy.address]}) as fronted,
        ):
            with pytest.raises(openai.RateLimitError) as caught:
                await fronted.openai.chat.completions.create(**CHAT, stream=True)
            said = caught.value.response.headers
            assert (said.get("retry-after"), said.get("retry-after-ms")) == headers
            assert caught.value.code == "queue_full"


async def test_deadline_is_504_with_the_partial_answer_and_no_retry() -> None:
    async with (
        running_spy(answer_with(Chunk(text="so far"), seconds=60)) as spy,
        running_http_router({"writer": [spy.address]}) as fronted,
    ):
        patient = fronted.openai.with_options(max_retries=2)
        with pytest.raises(openai.InternalServerError) as caught:
            await patient.chat.completions.create(**CHAT, extra_body={"octet": {"timeout_ms": 3000}})
        assert caught.value.status_code == 504 and len(spy.asked) == 1
        body: Any = caught.value.body
        assert (body["code"], body["type"]) == ("deadline", "timeout_error")
        assert body["partial"] == [{"index": 0, "text": "so far"}]
        assert caught.value.response.headers["x-octet-specialist"] == "writer"
        with pytest.raises(openai.APITimeoutError):
            await fronted.openai.with_options(timeout=0.3).chat.completions.create(**CHAT)
        await fronted.routed.idle()


async def test_failed_stream_ends_with_an_error_and_without_done() -> None:
    async with (
        running_spy(answer_with(Chunk(text="so far"), fails=engine_failed("x"))) as spy,
        running_http_router({"writer": [spy.address]}) as fronted,
    ):
        response = await fronted.ask(stream=True)
        first, last = response.events
        assert response.status == 200 and first["choices"][0]["delta"]["content"] == "so far"
        assert set(last) == {"error"} and last["error"]["code"] == "engine_failed"
        with pytest.raises(openai.APIError, match="the engine failed"):
            _ = [each async for each in await fronted.openai.chat.completions.create(**CHAT, stream=True)]


@pytest.mark.parametrize("stream", [False, True])
async def test_disconnect_leaves_the_replica_idle(stream: bool) -> None:
    async with running_replica(sim(SLOW)) as served, running_http_router({"writer": [served.address]}) as fronted:
        chat = fronted.openai.chat.completions
        asked = asyncio.create_task(chat.create(**{**CHAT, "max_tokens": 400}, n=2, stream=stream))
        await fronted.routed.until(lambda: served.server.handler.num_live == 2)
        if stream:
            answer = await asked
            assert isinstance(answer, openai.AsyncStream)
            await anext(aiter(answer))
            await answer.close()
        else:
            asked.cancel()
        await fronted.routed.idle()
        await served.idle()
        served.check_whole()
