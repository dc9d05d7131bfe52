"""POST /v1/embeddings, in OpenAI's dialect."""

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from struct import pack
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from octet.background import cancel_tasks
from octet.v1 import inference_pb2 as wire
from router.answers import ResponseCollector
from router.api.http import common_fields, errors, fields
from router.api.http.body import BodyReader
from router.api.http.completions import OctetReceipts, summarize_receipt
from router.api.http.connection import get_trace_headers, run_while_connected
from router.serving import RequestServer, TraceHeaders

MAX_INPUTS = 2048  # OpenAI's limit
MAX_CONCURRENT = 16  # inputs of one call that are computed at the same time
_TOKEN_IDS = (
    "it holds token ids, which belong to one model's tokenizer; send text (in LangChain, set "
    "check_embedding_ctx_length=False)"
)
_Input = Annotated[str, fields.text_limits("prompt", 1)]
_Inputs = Annotated[list[_Input], Meta(min_length=1, extra_json_schema={"maxItems": MAX_INPUTS})]


class EmbeddingRequest(Struct, kw_only=True):
    model: common_fields.ModelField
    input: _Input | _Inputs
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[Any, fields.only("an embedding has the size of its model's hidden state")] = None
    user: common_fields.IdText | None = None
    octet: common_fields.OctetOptions | None = None


class Embedding(Struct, forbid_unknown_fields=True, tag_field="object", tag="embedding"):
    """`embedding` is a list of numbers or, in base64, little-endian 32-bit floats."""

    index: fields.Count
    embedding: list[float] | str


class EmbeddingUsage(Struct, forbid_unknown_fields=True):
    prompt_tokens: fields.Count
    total_tokens: fields.Count


class EmbeddingList(Struct, forbid_unknown_fields=True, tag_field="object", tag="list"):
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    octet: OctetReceipts | UnsetType = UNSET


def parse_embedding_request(body: dict[str, Any]) -> EmbeddingRequest:
    given = body.get("input")
    if isinstance(given, list) and any(isinstance(each, int | list) for each in given):
        raise errors.unsupported_field("input", _TOKEN_IDS)
    request = fields.to_struct(body, EmbeddingRequest)
    fields.check_supported(request)
    if isinstance(request.input, list) and len(request.input) > MAX_INPUTS:
        raise errors.invalid_field("input", f"a list of at most {MAX_INPUTS:,} texts", f"{len(request.input):,} texts")
    return request


async def create_embeddings(
    service: RequestServer, bodies: BodyReader, scope: Scope, receive: Receive, send: Send
) -> None:
    """Embed every input as a request of its own, with an id and a receipt. If one fails, all fail."""
    connection = Request(scope, receive)
    body = parse_embedding_request(await bodies.read_object(connection))
    model = common_fields.ModelName.parse(body.model)
    options = common_fields.octet_request(model, body.octet)
    options.user_id, options.embed = body.user or "", True
    inputs = [body.input] if isinstance(body.input, str) else body.input
    requests = [_request(text, options, scope["request_id"], index) for index, text in enumerate(inputs)]
    names = {
        **common_fields.octet_field_names(model, common_fields.OctetOptions),
        "prompt": "input",
        "user_id": "user",
        "embed": "model",
    }
    with errors.rename_fields(names):
        work = _embed_all(service, requests, get_trace_headers(connection))
        answers = await run_while_connected(receive, work)
    specialist = answers[0].receipt.specialist
    found = EmbeddingList(
        [
            Embedding(index, _encode(answer.embedding, body.encoding_format or "float"))
            for index, answer in enumerate(answers)
        ],
        model.answered_by(specialist),
        _usage(answers),
        OctetReceipts([summarize_receipt(answer.receipt) for answer in answers])
        if body.octet is not None and body.octet.receipt
        else UNSET,
    )
    await errors.JsonResponse(found, headers={"x-octet-specialist": specialist})(scope, receive, send)


def _request(text: str, options: wire.InferRequest, request_id: str, index: int) -> wire.InferRequest:
    request = wire.InferRequest()
    request.CopyFrom(options)
    request.prompt, request.request_id = text, f"{request_id}-{index}" if index else request_id
    return request


async def _embed_all(
    service: RequestServer, requests: Sequence[wire.InferRequest], trace: TraceHeaders
) -> list[wire.InferResponse]:
    """Return the answers in the order of the requests. Raises the first Refusal and cancels the rest."""
    slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def embed(request: wire.InferRequest) -> wire.InferResponse:
        async with slots:
            collector = ResponseCollector()
            await service.answer(request, None, trace, collector.write)
            return collector.response

    tasks = [asyncio.create_task(embed(request)) for request in requests]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await cancel_tasks(*tasks)


def _usage(answers: Sequence[wire.InferResponse]) -> EmbeddingUsage:
    num_tokens = sum(answer.receipt.usage.prompt_tokens for answer in answers)
    return EmbeddingUsage(num_tokens, num_tokens)


def _encode(embedding: Sequence[float], encoding: Literal["float", "base64"]) -> list[float] | str:
    if encoding == "float":
        return list(embedding)
    return b64encode(pack(f"<{len(embedding)}f", *embedding)).decode()
