"""Callers of an endpoint over gRPC and over OpenAI's API, and the answers that they get."""

import asyncio
import json
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

import grpc
from grpc import aio

from bench.http_client import Broken, HttpClient, Response, http_request
from bench.serving import workload
from bench.serving.workload import Ask, ClassFields, ServeMistake, TokenCount, is_octet
from octet.addresses import is_local
from octet.client.channel import channel_options, read_metadata_message
from octet.client.errors import ERROR_METADATA_KEY
from octet.v1 import inference_pb2 as wire


class Unreachable(ServeMistake):
    """An endpoint does not answer, or does not answer with HTTP."""


End = Literal["answered", "refused", "expired", "failed"]
"""refused: for lack of capacity; expired: ended at its deadline, by the endpoint or by the caller."""


@dataclass(frozen=True, slots=True)
class ServedAnswer:
    ask: Ask
    end: End
    pieces: tuple[float, ...] = ()  # arrival of each piece of text, in seconds after the request was due
    total: float = 0.0  # seconds after the request was due
    tokens: int = 0  # as the endpoint counts them, or else the number of pieces
    prompt_tokens: int | None = None
    why: str = ""
    retry_after: bool = False  # whether the refusal has a retry-after
    behind: float = 0.0  # seconds that the load generator was late

    @property
    def ttft(self) -> float | None:
        return self.pieces[0] if self.pieces else None

    @property
    def good(self) -> bool:
        caller = self.ask.caller
        ttft = self.ttft
        return self.end == "answered" and ttft is not None and ttft <= caller.ttft and self.total <= caller.total


class BenchCaller(Protocol):
    async def ask(self, ask: Ask, due: float) -> ServedAnswer: ...

    async def check(self) -> str: ...

    async def close(self) -> None: ...


class BenchCall:
    """One request: when its pieces arrive, and how it ends. At its deadline the caller disconnects."""

    def __init__(self, ask: Ask, due: float, give_up: float) -> None:
        self._ask, self._due, self._give_up = ask, due, give_up
        self._behind = perf_counter() - due
        self._pieces: list[float] = []
        self._until = min(give_up, ask.caller.ttft)
        self.timer = asyncio.timeout(self._left())

    def add_piece(self) -> None:
        self._pieces.append(perf_counter() - self._due)
        if len(self._pieces) == 1:
            self._until = min(self._give_up, self._ask.caller.total)
            self.timer.reschedule(asyncio.get_running_loop().time() + self._left())

    @property
    def has_begun(self) -> bool:
        return bool(self._pieces)

    def answer(
        self, end: End, why: str = "", *, usage: tuple[int, int | None] | None = None, retry_after: bool = False
    ) -> ServedAnswer:
        """`usage` is the number of tokens of the answer and of the prompt, as the endpoint counts them."""
        tokens, prompt_tokens = usage or (len(self._pieces), None)
        total = perf_counter() - self._due
        return ServedAnswer(
            self._ask, end, tuple(self._pieces), total, tokens, prompt_tokens, why, retry_after, self._behind
        )

    def hang_up(self) -> ServedAnswer:
        """Return the answer when the caller disconnects: "expired" at its deadline, "failed" if `give_up` is less."""
        caller = self._ask.caller
        end: End = "expired" if self._until == (caller.total if self.has_begun else caller.ttft) else "failed"
        return self.answer(end, f"no {'whole answer' if self.has_begun else 'token'} within {self._until:g} s")

    def _left(self) -> float:
        return self._due + self._until - perf_counter()


_REFUSALS = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
_PROBES = (8, 200)  # words of the prompts that calibrate token counts
_PROBE_SECONDS = 60.0


class BenchGrpcCaller:
    def __init__(self, address: str, model: str, key: str | None, give_up: float) -> None:
        self._address = address
        self._channel = aio.insecure_channel(address, options=channel_options())
        service, serialize = "/octet.v1.Inference", wire.InferRequest.SerializeToString
        self._generate = self._channel.unary_stream(f"{service}/Generate", serialize, wire.InferEvent.FromString)
        self._count_tokens = self._channel.unary_unary(
            f"{service}/CountTokens", serialize, wire.CountResponse.FromString
        )
        self._pinned = [name] if (name := model.partition("/")[2]) else []
        self._metadata = (("authorization", f"Bearer {key}"),) if key else ()
        self._give_up = give_up
        self._count = TokenCount()

    async def ask(self, ask: Ask, due: float) -> ServedAnswer:
        call, usage = BenchCall(ask, due, self._give_up), None
        request = self._request(workload.build_prompt(ask, self._count), ask.answer_tokens)
        request.priority, request.timeout_ms = ask.caller.priority, max(1, round(1000 * ask.caller.total))
        request.first_token_timeout_ms = max(1, round(1000 * ask.caller.ttft))
        try:
            async with call.timer:
                async for event in self._generate(request, metadata=self._metadata):
                    if event.WhichOneof("event") == "chunk":
                        call.add_piece()
                    elif event.receipt.HasField("usage"):
                        usage = event.receipt.usage.completion_tokens, event.receipt.usage.prompt_tokens
        except aio.AioRpcError as error:
            return _refusal_or_failure(call, error)
        except TimeoutError:
            return call.hang_up()
        return call.answer("answered", usage=usage)

    async def check(self) -> str:
        try:
            counts = [await self._counted(words) for words in _PROBES]
            async for _ in self._generate(
                self._request("the", 2), metadata=self._metadata, timeout=_PROBE_SECONDS, wait_for_ready=False
            ):
                continue
        except aio.AioRpcError as error:
            raise ServeMistake(f"{self._address}: {error.code().name.lower()}: {_one_line(error)}") from error
        self._count = workload.fit_count((_PROBES[0], counts[0]), (_PROBES[1], counts[1]))
        return str(self._count)

    async def close(self) -> None:
        await self._channel.close()

    async def _counted(self, words: int) -> int:
        request = self._request(workload.draw_words(words, f"probe of {words}"), 1)
        answer = await self._count_tokens(request, metadata=self._metadata, timeout=_PROBE_SECONDS)
        return int(answer.prompt_tokens)

    def _request(self, prompt: str, tokens: int) -> Any:
        request = wire.InferRequest(force_specialists=self._pinned, max_tokens=tokens, ignore_eos=True)
        request.messages.add(role="user", content=prompt)
        request.sampling.temperature = 0.0
        return request


def _refusal_or_failure(call: BenchCall, error: aio.AioRpcError) -> ServedAnswer:
    why = f"{error.code().name.lower()}: {_one_line(error)}"
    if error.code() in _REFUSALS and not call.has_begun:
        sent = read_metadata_message(error.trailing_metadata(), ERROR_METADATA_KEY, wire.Error)
        return call.answer("refused", why, retry_after=sent is not None and sent.HasField("retry_after_ms"))
    return call.answer("expired" if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED else "failed", why)


def _one_line(error: aio.AioRpcError) -> str:
    return " ".join((error.details() or "").split())[:200]


_END = b"[DONE]"
_EXPIRED = ("deadline", "timeout_error")


def find_message(fields: Any) -> str:
    """Return the message of an error in OpenAI's form, in FastAPI's form, or in plain text."""
    error = fields.get("error", fields) if isinstance(fields, dict) else fields
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return " ".join(str(error).split())[:200]


_PORTS = {"http": 80, "https": 443}
_MOST_ERROR = 1 << 16


@dataclass(frozen=True, slots=True)
class Origin:
    scheme: str
    host: str
    port: int
    path: str  # including /v1

    @property
    def name(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_origin(url: str) -> Origin:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError as error:
        raise ServeMistake(f"{url}: {error}") from error
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ServeMistake(f"{url}: must be http://HOST:PORT/v1 or https://HOST/v1")
    path = parts.path.rstrip("/")
    if not path.endswith("/v1"):
        raise ServeMistake(f"{url}: an OpenAI endpoint ends with /v1; did you mean {url.rstrip('/')}/v1?")
    return Origin(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], path)


_REFUSED_STATUSES = (429, 503)
_GATEWAY_TIMEOUT = 504


@dataclass(slots=True)
class StreamState:
    """The part of a stream of server-sent events that has arrived."""

    on_piece: Callable[[], None] = lambda: None
    num_pieces: int = 0
    usage: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    expired: bool = False  # whether the deadline has passed
    finished: bool = False
    body: bytes = b""
    _rest: bytes = b""

    def add(self, part: bytes) -> None:
        self.body = (self.body + part)[:_MOST_ERROR]
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and (data := line[5:].strip()) != _END:
                self._add_event(data)

    def _add_event(self, data: bytes) -> None:
        try:
            fields = json.loads(data)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            self.error = f"an event that is not a JSON object: {data[:60]!r}"
            return
        if error := fields.get("error"):
            self.error = find_message(fields)
            self.expired |= isinstance(error, dict) and (error.get("code") or error.get("type")) in _EXPIRED
            return
        choice = (fields.get("choices") or [{}])[0]
        delta = choice.get("delta") or {}
        if delta.get("content") or delta.get("reasoning_content") or choice.get("text"):
            self.num_pieces += 1
            self.on_piece()
        if isinstance(fields.get("usage"), dict):
            self.usage = fields["usage"]
        self.finished = self.finished or bool(choice.get("finish_reason"))

    @property
    def message(self) -> str:
        try:
            return find_message(json.loads(self.body))
        except ValueError:
            return find_message(self.body.decode("utf-8", "replace"))


class OpenAICaller:
    def __init__(
        self, origin: Origin, model: str, key: str | None, give_up: float, class_fields: ClassFields | None = None
    ) -> None:
        tls = ssl.create_default_context() if origin.scheme == "https" else None
        self._client = HttpClient(origin.host, origin.port, tls=tls)
        self._origin = origin
        self._model = model
        self._give_up = give_up
        self._count = TokenCount()
        self._class_fields = class_fields or (workload.to_octet if is_octet(model) else lambda _: {})
        self._key = f"authorization: Bearer {key}\r\n" if key else ""

    async def ask(self, ask: Ask, due: float) -> ServedAnswer:
        call = BenchCall(ask, due, self._give_up)
        request = self._request(
            workload.build_prompt(ask, self._count), ask.answer_tokens, self._class_fields(ask.caller)
        )
        state = StreamState(call.add_piece)
        try:
            async with call.timer:
                response = await self._client.exchange(request, state.add)
        except OSError as error:
            return call.hang_up() if call.timer.expired() else call.answer("failed", str(error) or type(error).__name__)
        if response.status == 200:
            return _end_of_stream(call, state)
        end: End = "refused" if response.status in _REFUSED_STATUSES else "failed"
        if response.status == _GATEWAY_TIMEOUT and is_octet(self._model):
            end = "expired"
        retry = end == "refused" and not {"retry-after", "retry-after-ms"}.isdisjoint(response.headers)
        return call.answer(end, f"{response.status}: {state.message}", retry_after=retry)

    async def check(self) -> str:
        await self._check_models()
        counts = [await self._probe(words) for words in _PROBES]
        if counts[0] is None or counts[1] is None:
            return "sends no usage: each word of a prompt and each piece of an answer counts as a token"
        self._count = workload.fit_count((_PROBES[0], counts[0]), (_PROBES[1], counts[1]))
        return str(self._count)

    async def close(self) -> None:
        self._client.close()

    async def _check_models(self) -> None:
        """Check the list of models, if the endpoint has one: it must include the requested model."""
        request = http_request("GET", f"{self._origin.path}/models", self._origin.name, more=self._key)
        response, state = await self._exchange_once(request)
        try:
            listed = json.loads(state.body).get("data")
        except (ValueError, AttributeError):
            return
        if response.status == 200 and isinstance(listed, list):
            names = [str(each.get("id")) for each in listed if isinstance(each, dict)]
            if names and self._model not in names:
                raise ServeMistake(f"{self._where}: unknown model {self._model!r} (known: {', '.join(names[:8])})")

    async def _probe(self, words: int) -> int | None:
        response, state = await self._exchange_once(
            self._request(workload.draw_words(words, f"probe of {words}"), 2, {})
        )
        if response.status != 200:
            raise ServeMistake(f"{self._where}: {response.status}: {state.message}")
        kind = response.headers.get("content-type", "nothing")
        if "text/event-stream" not in kind:
            raise ServeMistake(f"{self._where}: asked for a stream of events (SSE), got {kind}")
        if state.error is not None or not (state.num_pieces or state.finished):
            raise ServeMistake(f"{self._where}: the stream has no answer: {state.error or 'no text'}")
        tokens = state.usage.get("prompt_tokens")
        return tokens if isinstance(tokens, int) else None

    async def _exchange_once(self, request: bytes) -> tuple[Response, StreamState]:
        state = StreamState()
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                return await self._client.exchange(request, state.add), state
        except TimeoutError as error:
            raise Unreachable(f"{self._where}: no answer within {_PROBE_SECONDS:g} s") from error
        except Broken as error:
            raise Unreachable(f"{self._where}: {error}") from error
        except OSError as error:
            raise Unreachable(f"{self._where}: cannot be reached ({error})") from error

    @property
    def _where(self) -> str:
        return f"{self._origin.scheme}://{self._origin.name}{self._origin.path}"

    def _request(self, prompt: str, tokens: int, more: dict[str, Any]) -> bytes:
        fields = {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **more,
        }
        return http_request("POST", f"{self._origin.path}/chat/completions", self._origin.name, fields, self._key)


def _end_of_stream(call: BenchCall, state: StreamState) -> ServedAnswer:
    if state.error is not None or not state.finished:
        return call.answer("expired" if state.expired else "failed", state.error or "the stream ended without a reason")
    if "completion_tokens" not in state.usage:
        return call.answer("answered")
    return call.answer("answered", usage=(state.usage["completion_tokens"], state.usage.get("prompt_tokens")))


@dataclass(frozen=True, slots=True)
class BenchEndpoint:
    kind: str  # http or grpc
    where: str
    model: str
    name: str
    class_fields: ClassFields | None = None  # None: chosen by the model's name


def named_apart(endpoints: Sequence[BenchEndpoint]) -> list[BenchEndpoint]:
    """Return the endpoints with unique names: equal names get the model added, then a number if still equal."""
    names = [each.name for each in endpoints]
    fuller = [each.name if names.count(each.name) == 1 else f"{each.name} {each.model}" for each in endpoints]
    counted = [
        name if fuller.count(name) == 1 else f"{name} ({fuller[: index + 1].count(name)})"
        for index, name in enumerate(fuller)
    ]
    return [replace(each, name=name) for each, name in zip(endpoints, counted, strict=True)]


def build_caller(endpoint: BenchEndpoint, key: str | None, give_up: float) -> BenchCaller:
    if endpoint.kind == "grpc":
        _check_key(key, endpoint.where, encrypted=False)
        return BenchGrpcCaller(endpoint.where, endpoint.model, key, give_up)
    origin = parse_origin(endpoint.where)
    _check_key(key, origin.name, encrypted=origin.scheme == "https")
    return OpenAICaller(origin, endpoint.model, key, give_up, endpoint.class_fields)


def _check_key(key: str | None, where: str, *, encrypted: bool) -> None:
    if key is not None and not encrypted and not is_local(where):
        raise ServeMistake(f"the key would be sent to {where} unencrypted: use https")
