"""OpenAI's unmodified client gets embeddings from a specialist that computes them, and a clear refusal otherwise."""

import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from octet import AsyncClient, NotFound
from octet.clock import SystemClock
from octet.config.ensemble import Ensemble, SpecialistConfig
from octet.v1 import inference_pb2 as wire
from specialist.server.native_replica import replica_from_checkpoint
from specialist.server.settings import ReplicaSettings
from tests.conformance.native import MODEL, checkpoint
from tests.later import Later
from tests.router.http.harness import HttpHarness, running_http_router
from tests.specialist.server.harness import QUICK, running_replica, sim

if TYPE_CHECKING:
    import openai
else:
    openai = Later("openai")

TEXTS = ["undefined reference to vtable", "a cat", "undefined reference to a vtable"]


def ensemble(**embeddings: bool) -> Ensemble:
    return Ensemble(tuple(SpecialistConfig(name, embeddings=does) for name, does in embeddings.items()))


@asynccontextmanager
async def embedding_router() -> AsyncIterator[HttpHarness]:
    settings = ReplicaSettings(name="writer", num_blocks=64, block_size=16, kernel="fused", threads=1)

    def build() -> Any:
        return replica_from_checkpoint(checkpoint(MODEL), "tiny", settings, SystemClock())

    async with running_replica(build) as real, running_replica(sim(QUICK)) as other:
        addresses = {"writer": [real.address], "editor": [other.address]}
        async with running_http_router(addresses, ensemble=ensemble(writer=True, editor=False)) as fronted:
            yield fronted


async def test_openai_embeddings() -> None:
    async with embedding_router() as fronted:
        create = fronted.openai.embeddings.create
        several = await create(model="octet/writer", input=TEXTS)
        assert [each.index for each in several.data] == [0, 1, 2]
        vectors = [each.embedding for each in several.data]
        assert all(len(vector) == MODEL.hidden_size for vector in vectors)
        assert all(math.isclose(math.hypot(*vector), 1.0, abs_tol=1e-5) for vector in vectors)
        assert several.model == "octet/writer"
        assert several.usage.prompt_tokens == several.usage.total_tokens > 10
        for text, vector in zip(TEXTS, vectors, strict=True):
            one = await create(model="octet", input=text, encoding_format="float")
            assert one.data[0].embedding == pytest.approx(vector, abs=1e-7), "base64 and float must agree"
            assert one.model == "octet/writer"
        raw = await create(model="octet", input=TEXTS[:1], extra_body={"octet": {"receipt": True}})
        (receipt,) = raw.model_dump()["octet"]["receipts"]
        assert receipt["specialist"] == "writer"
        assert receipt["why"] == "writer is the only specialist that computes embeddings"


async def test_an_embedding_over_grpc_and_infer() -> None:
    async with embedding_router() as fronted:
        request = wire.InferRequest(prompt=TEXTS[0], embed=True, request_id="mine")
        answer = await fronted.routed.call("Infer", request, wire.InferResponse)
        assert len(answer.embedding) == MODEL.hidden_size and answer.text == ""
        assert answer.receipt.usage.completion_tokens == 0
        assert answer.receipt.usage.finish_reason == wire.FINISH_REASON_STOP
        native = await fronted.post(b'{"prompt": "undefined reference to vtable", "embed": true}', "/v1/infer")
        assert native.json["embedding"] == pytest.approx(list(answer.embedding), abs=1e-7)


async def test_refusals() -> None:
    async with embedding_router() as fronted:
        create = fronted.openai.embeddings.create
        with pytest.raises(openai.NotFoundError, match=r"editor does not compute embeddings; name one.*octet/writer"):
            await create(model="octet/editor", input="a")
        with pytest.raises(openai.BadRequestError, match="input is not supported: it holds token ids"):
            await create(model="octet", input=[1, 2])
        with pytest.raises(openai.BadRequestError, match="dimensions is not supported"):
            await create(model="octet", input="a", dimensions=8)
        for body in (b'{"model": "octet", "input": []}', b'{"model": "octet", "input": [""]}', b'{"model": "octet"}'):
            refused = await fronted.post(body, "/v1/embeddings")
            assert (refused.status, refused.error["param"]) == (400, "input")
        too_long = await fronted.post(b'{"model": "octet", "input": "%s"}' % (b"a" * 6000), "/v1/embeddings")
        assert (too_long.status, too_long.error["code"]) == (400, "context_length_exceeded")
        structured = b'{"model": "octet", "input": "a", "octet": {"structure": {"regex": "a"}}}'
        refused = await fronted.post(structured, "/v1/embeddings")
        assert (refused.status, refused.error["param"]) == (400, "octet.structure")
        job = await fronted.post(b'{"prompt": "a", "embed": true}', "/v1/jobs")
        assert job.status == 400


async def test_without_a_specialist_for_embeddings_the_404_says_what_to_do() -> None:
    async with (
        running_replica(sim(QUICK)) as served,
        running_http_router({"writer": [served.address]}, ensemble=ensemble(writer=False)) as fronted,
    ):
        with pytest.raises(openai.NotFoundError, match="set `embeddings: true` for a specialist"):
            await fronted.openai.embeddings.create(model="octet", input="a")


async def test_a_sim_engine_refuses_an_embedding() -> None:
    async with (
        running_replica(sim(QUICK)) as served,
        running_http_router({"writer": [served.address]}, ensemble=ensemble(writer=True)) as fronted,
    ):
        refused = await fronted.post(b'{"model": "octet", "input": "a"}', "/v1/embeddings")
        assert refused.status == 400
        assert "this engine has no hidden states" in refused.error["message"]


async def test_the_sdk_embeds() -> None:
    async with embedding_router() as fronted, AsyncClient(fronted.routed.address) as client:
        vector = await client.embed(TEXTS[1], force="writer")
        assert len(vector) == MODEL.hidden_size
        assert vector == pytest.approx(await client.embed(TEXTS[1]), abs=1e-7)
        with pytest.raises(NotFound, match="editor does not compute embeddings"):
            await client.embed("a", force="editor")


async def test_requests_that_hold_too_much_are_named_as_such() -> None:
    async with (
        running_replica(sim(QUICK)) as served,
        running_http_router({"writer": [served.address]}, ensemble=ensemble(writer=True)) as fronted,
    ):
        many = await fronted.post(json.dumps({"model": "octet", "input": ["a"] * 2049}).encode(), "/v1/embeddings")
        assert (many.status, many.error["param"]) == (400, "input")
        assert "a list of at most 2,048 texts, got 2,049 texts" in many.error["message"]
        large = await fronted.post(
            json.dumps({"model": "octet", "input": ["a" * 4000] * 2000}).encode(), "/v1/embeddings"
        )
        assert (large.status, large.error["code"]) == (413, "request_too_large"), "no prompt is too long"
        for field, value in (("max_tokens", 3), ("seed", 1), ("stop", "a"), ("ignore_eos", True)):
            refused = await fronted.post(json.dumps({"prompt": "a", "embed": True, field: value}).encode(), "/v1/infer")
            assert (refused.status, refused.error["param"]) == (400, field)


async def test_models_in_anthropics_dialect_have_its_errors() -> None:
    async with running_replica(sim(QUICK)) as served, running_http_router({"writer": [served.address]}) as fronted:
        headers = {"anthropic-version": "2023-06-01"}
        missing = await fronted.send("GET", "/v1/models/nope", b"", headers)
        assert missing.status == 404 and missing.anthropic_error["type"] == "not_found_error"
        assert (await fronted.get("/v1/models/nope")).error["code"] == "model_not_found"
