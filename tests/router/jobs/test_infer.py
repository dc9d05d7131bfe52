"""`POST /v1/infer`: all fields of requests and answers, and the verdict."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octet.rpc.refusal import engine_failed
from octet.v1 import inference_pb2, specialist_pb2
from octet.v1 import specialist_pb2 as wire
from router import serving
from router.api.http.errors import ApiError
from router.api.http.infer import JobRequest
from router.verify.by_task import VerifierSet
from router.verify.verdict import Verdict
from tests.router.http.harness import HttpResponse
from tests.router.http.infer_bodies import parse_infer_request
from tests.router.jobs.harness import WORDS, JobsHarness, answering, running_jobs
from tests.router.jobs.test_jobs import TEXT
from tests.router.serving.harness import infer_request


async def infer(harness: JobsHarness, **fields: Any) -> HttpResponse:
    return await harness.post("/v1/infer", {"prompt": "hello", "force_specialists": ["writer"], **fields})


def named_events(response: HttpResponse) -> list[tuple[str, Any]]:
    parts = [part.split("\n") for part in response.body.decode().split("\n\n") if part]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in parts]


async def test_an_answer_at_once_and_streamed(tmp_path: Path) -> None:
    async with running_jobs(tmp_path) as harness:
        response = await infer(harness)
        whole = response.json
        assert response.status == 200 and whole["id"] == response.headers["x-request-id"]
        assert (whole["text"], whole["finish_reason"], whole["partial"]) == (TEXT, "stop", False)
        assert (whole["tool_calls"], whole["validation"], whole["specialist"]) == ([], None, "writer")
        assert whole["usage"]["completion_tokens"] == len(WORDS) and "logprobs" not in whole
        assert (await harness.fronted.get(f"/v1/receipts/{whole['id']}")).json == whole["receipt"]
        events = named_events(await infer(harness, stream=True, validate=True))
        assert [name for name, _ in events] == ["routed", "chunk", "chunk", "chunk", "receipt"]
        assert "".join(content["text"] for name, content in events if name == "chunk") == TEXT
        assert events[0][1]["receipt"]["specialist"] == "writer"
        last = events[-1][1]
        assert (last["finish_reason"], last["partial"], last["validation"]["outcome"]) == ("stop", False, "passed")


async def test_the_text_until_the_deadline_is_returned_as_partial(tmp_path: Path) -> None:
    async with running_jobs(tmp_path, answering(*WORDS, holds=asyncio.Event())) as harness:
        late, streamed = await asyncio.gather(
            infer(harness, timeout_ms=3000), infer(harness, timeout_ms=3000, stream=True)
        )
        body = late.json
        assert (late.status, body["text"], body["partial"]) == (504, TEXT, True)
        assert body["error"]["code"] == "deadline" and body["receipt"]["error"]["reason"] == "deadline"
        assert body["id"] == late.headers["x-request-id"] and late.headers["x-should-retry"] == "false"
        *_, (name, content) = named_events(streamed)
        assert (name, content["partial"], content["error"]["code"]) == ("error", True, "deadline")
        harness.spy.behave = _refusing
        failed = await infer(harness)
        assert (failed.status, failed.error["code"]) == (500, "engine_failed")
        assert (await infer(harness, stream=True)).status == 500, "the failure must come before the first chunk"


async def _refusing(request: wire.GenerateRequest, context: Any) -> None:
    refusal = engine_failed(request.request_id)
    await context.abort(refusal.code, str(refusal), refusal.metadata())


async def test_a_verdict_comes_with_the_answer_and_delays_no_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If an answer cannot be verified in time, its verdict is `skipped`, with a reason."""

    class SlowVerifier:
        name = "slow"

        async def verify(self, question: str, answer: str) -> Verdict:
            await asyncio.Event().wait()
            return Verdict("passed")

        async def close(self) -> None: ...

    async with running_jobs(tmp_path, answering('{"a": 1}'), verify="json") as harness:
        passed = (await infer(harness, validate=True)).json["validation"]
        assert (passed["verifier"], passed["outcome"]) == ("json", "passed") and passed["seconds"] > 0
        harness.spy.behave = answering("{")
        answer = await harness.client.infer("hello", force="writer", validate=True)
        assert answer.receipt.validation is not None and answer.receipt.validation.outcome == "failed"
        routed = await harness.fronted.routed.ask(infer_request(validate=True))
        assert routed.receipt is not None and routed.receipt.validation.outcome == "failed"
        assert routed.receipt.validation.detail
        assert not (await harness.fronted.routed.ask(infer_request())).receipt.HasField("validation")  # type: ignore[union-attr]
        validations = harness.fronted.routed.server.service.answer_validator
        monkeypatch.setattr(validations, "_verifiers", lambda: VerifierSet({"writer": SlowVerifier()}))
        monkeypatch.setattr(validations, "_most", 1)
        answers = await asyncio.gather(*(infer(harness, validate=True, timeout_ms=3000) for _ in range(2)))
        details = sorted(answer.json["validation"]["detail"] for answer in answers)
        assert [answer.json["validation"]["outcome"] for answer in answers] == ["skipped"] * 2
        assert "no verdict within" in details[1] and details[0].startswith("1 answers already wait")


@pytest.mark.parametrize(
    ("task", "reason", "answer", "expected"),
    [
        ("json_parsing", wire.FINISH_REASON_STOP, "[1", ("json", "failed")),
        ("default", wire.FINISH_REASON_STOP, "[1", ("non_empty", "passed")),
        ("default", wire.FINISH_REASON_STOP, " ", ("non_empty", "failed")),
        ("default", wire.FINISH_REASON_LENGTH, "[1", ("non_empty", "skipped")),
        ("default", wire.FINISH_REASON_STOP, None, ("non_empty", "skipped")),
    ],
)
async def test_the_task_determines_the_verifier(
    task: str, reason: Any, answer: str | None, expected: tuple[str, str]
) -> None:
    from dataclasses import replace

    from octet.config.ensemble import with_default_tasks
    from router.verify.by_task import open_verifiers
    from tests.router.shadow.harness import PRIMARY, ensemble_of

    verifiers = open_verifiers(replace(ensemble_of(), tasks=with_default_tasks(())))
    validations = serving.AnswerValidator(lambda: verifiers, 1, 20.0)
    receipt = inference_pb2.Receipt(specialist=PRIMARY, usage=specialist_pb2.Usage(finish_reason=reason))
    receipt.decision.task = task
    collected = await validations.validate(receipt, "question", None, answer, 20.0)
    assert (collected.verifier, collected.outcome) == expected


def test_every_field_of_a_request_can_be_set() -> None:
    body: dict[str, Any] = {
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "tool_calls": [{"id": "1", "name": "f", "arguments": "{}"}]},
            {"role": "tool", "content": "2", "tool_call_id": "1"},
        ],
        "tools": [{"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}],
        "tool_choice": {"name": "f"},
        "structure": {"choice": ["a", "b"]},
        "stop": "x",
        "seed": -1,
        "temperature": 0.5,
        "num_logprobs": 2,
        "metadata": {"session_id": "s"},
        "validate": True,
    }
    request = parse_infer_request(body)
    assert request.messages[1].tool_calls[0].name == "f" and request.messages[2].tool_call_id == "1"
    assert json.loads(request.tools[0].parameters) == {"type": "object"} and request.tools[0].strict
    assert request.tool_choice.name == "f" and list(request.structure.choice.choices) == ["a", "b"]
    assert (list(request.stop), request.seed, request.sampling.temperature) == (["x"], -1, 0.5)
    assert request.metadata["session_id"] == "s" and request.validate
    fields = inference_pb2.InferRequest.DESCRIPTOR.fields_by_name
    hidden = {"request_id", "tenant_salt", "sampling", "embed", "ticket", "wait_ms"}
    assert set(fields) - hidden == {name for name in JobRequest.__struct_fields__ if name in fields}


@pytest.mark.parametrize("choice", [[], [None], 1, True, "any", {"name": 1}])
def test_an_invalid_tool_choice_names_its_field(choice: Any) -> None:
    with pytest.raises(ApiError) as refused:
        parse_infer_request({"prompt": "x", "tool_choice": choice})
    assert refused.value.param is not None and refused.value.param.startswith("tool_choice")


@pytest.mark.parametrize("schema", [True, False, [], "x"])
def test_a_schema_must_be_an_object(schema: Any) -> None:
    with pytest.raises(ApiError, match="a JSON Schema"):
        parse_infer_request({"prompt": "x", "structure": {"json_schema": schema}})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from([*JobRequest.__struct_fields__, "colour"]), JSON, max_size=4))
def test_any_body_is_a_request_or_an_error_that_names_a_field(body: dict[str, Any]) -> None:
    try:
        parse_infer_request(body)
    except ApiError as fault:
        assert fault.status == 400 and fault.param
