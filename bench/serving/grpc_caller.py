"""Calls to an Octet router over gRPC."""

from time import perf_counter
from typing import Any

import grpc
from grpc import aio

from bench.serving.answer import Answer, End
from bench.serving.asks import Ask
from bench.serving.hang_up import Patience
from bench.serving.usage import ServeMistake
from bench.serving.words import TokenCount, fit_count, prompt_of, words_of
from octet.rpc.refusal import METADATA_KEY
from octet.sdk.channel import channel_options
from octet.v1 import inference_pb2 as wire

_REFUSALS = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
_PROBES = (8, 200)
_PROBE_SECONDS = 60.0


class GrpcCaller:
    """`model` as over HTTP: "octet" lets the router decide, "octet/NAME" pins."""

    def __init__(self, address: str, model: str, key: str | None, give_up: float) -> None:
        self._address = address
        self._channel = aio.insecure_channel(address, options=channel_options())
        self._generate = self._channel.unary_stream(
            "/octet.v1.Inference/Generate",
            request_serializer=wire.InferRequest.SerializeToString,
            response_deserializer=wire.InferEvent.FromString,
        )
        self._count_tokens = self._channel.unary_unary(
            "/octet.v1.Inference/CountTokens",
            request_serializer=wire.InferRequest.SerializeToString,
            response_deserializer=wire.CountResponse.FromString,
        )
        self._pinned = [name] if (name := model.partition("/")[2]) else []
        self._metadata = (("authorization", f"Bearer {key}"),) if key else ()
        self._give_up = give_up
        self._count = TokenCount()

    async def ask(self, ask: Ask, due: float) -> Answer:
        behind = perf_counter() - due
        pieces: list[float] = []
        usage = None
        request = self._request(prompt_of(ask, self._count), ask.answer_tokens)
        request.priority, request.timeout_ms = ask.caller.priority, max(1, round(1000 * ask.caller.total))
        request.first_token_timeout_ms = max(1, round(1000 * ask.caller.ttft))
        patience = Patience(ask, due, self._give_up, behind)
        try:
            async with patience.timer:
                async for event in self._generate(request, metadata=self._metadata):
                    if event.WhichOneof("event") == "chunk":
                        pieces.append(perf_counter() - due)
                        if len(pieces) == 1:
                            patience.hears()
                    elif event.receipt.HasField("usage"):
                        usage = event.receipt.usage
        except aio.AioRpcError as error:
            return _turned_away(ask, error, tuple(pieces), perf_counter() - due, behind)
        except TimeoutError:
            return patience.hung_up(pieces)
        tokens, prompt = (usage.completion_tokens, usage.prompt_tokens) if usage is not None else (len(pieces), None)
        return Answer(ask, "answered", tuple(pieces), perf_counter() - due, tokens, prompt, behind=behind)

    async def check(self) -> str:
        try:
            counts = [await self._counted(words) for words in _PROBES]
            async for _ in self._generate(
                self._request("the", 2), metadata=self._metadata, timeout=_PROBE_SECONDS, wait_for_ready=False
            ):
                continue
        except aio.AioRpcError as error:
            raise ServeMistake(f"{self._address}: {error.code().name.lower()}: {_one_line(error)}") from error
        self._count = fit_count((_PROBES[0], counts[0]), (_PROBES[1], counts[1]))
        return f"{self._count.a_word:.3g} tokens a word, {self._count.around:.3g} around a prompt"

    async def close(self) -> None:
        await self._channel.close()

    async def _counted(self, words: int) -> int:
        request = self._request(words_of(words, f"probe of {words}"), 1)
        answer = await self._count_tokens(request, metadata=self._metadata, timeout=_PROBE_SECONDS)
        return int(answer.prompt_tokens)

    def _request(self, prompt: str, tokens: int) -> Any:
        request = wire.InferRequest(force_specialists=self._pinned, max_tokens=tokens, ignore_eos=True)
        request.messages.add(role="user", content=prompt)
        request.sampling.temperature = 0.0
        return request


def _turned_away(ask: Ask, error: aio.AioRpcError, pieces: tuple[float, ...], total: float, behind: float) -> Answer:
    why = f"{error.code().name.lower()}: {_one_line(error)}"
    if error.code() in _REFUSALS and not pieces:
        return Answer(ask, "refused", total=total, why=why, retry_after=_told(error), behind=behind)
    end: End = "expired" if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED else "failed"
    return Answer(ask, end, pieces, total, len(pieces), why=why, behind=behind)


def _told(error: aio.AioRpcError) -> bool:
    """Whether it says when to come again."""
    details = [value for key, value in error.trailing_metadata() or () if key == METADATA_KEY]
    return any(
        isinstance(value, bytes) and wire.Error.FromString(value).HasField("retry_after_ms") for value in details
    )


def _one_line(error: aio.AioRpcError) -> str:
    return " ".join((error.details() or "").split())[:200]
