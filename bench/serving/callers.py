"""Callers of an endpoint over gRPC and over OpenAI's dialect, and the answers that they get."""

import asyncio
import json
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Literal, NamedTuple, Protocol
from urllib.parse import urlsplit

import grpc
from grpc import aio

from bench.http_client import Broken, HttpClient, Response, http_request
from bench.serving.workload import (
    Ask,
    ClassFields,
    ServeMistake,
    TokenCount,
    fields_for,
    fit_count,
    is_octet,
    prompt_of,
    words_of,
)
from octet.addresses import is_local
from octet.client.channel import channel_options
from octet.rpc.refusal import ERROR_METADATA_KEY
from octet.v1 import inference_pb2 as wire

End = Literal["answered", "refused", "expired", "failed"]
# refused for lack of capacity; expired at its deadline, by the endpoint or by the caller


@dataclass(frozen=True, slots=True)
class ServedAnswer:
    ask: Ask
    end: End
    pieces: tuple[float, ...] = ()  # arrival of each piece of text, in seconds since it was due
    total: float = 0.0  # seconds since it was due
    tokens: int = 0  # as the endpoint counts them, else the pieces
    prompt_tokens: int | None = None
    why: str = ""
    retry_after: bool = False  # whether the refusal has one
    behind: float = 0.0  # seconds that the load generator was late

    @property
    def ttft(self) -> float | None:
        return self.pieces[0] if self.pieces else None

    @property
    def good(self) -> bool:
        caller = self.ask.caller
        ttft = self.ttft
        return self.end == "answered" and ttft is not None and ttft <= caller.ttft and self.total <= caller.total


class Caller(Protocol):
    async def ask(self, ask: Ask, due: float) -> ServedAnswer: ...

    async def check(self) -> str: ...

    async def close(self) -> None: ...


class Patience:
    """Hangs up at the deadline of a request, also where the endpoint knows none."""

    def __init__(self, ask: Ask, due: float, give_up: float, behind: float) -> None:
        self._ask = ask
        self._due = due
        self._behind = behind
        self._first = min(give_up, ask.caller.ttft)
        self._whole = min(give_up, ask.caller.total)
        self._until = self._first
        self.timer = asyncio.timeout(self._left())

    def hears(self) -> None:
        self._until = self._whole
        self.timer.reschedule(asyncio.get_running_loop().time() + self._left())

    def hung_up(self, pieces: Sequence[float]) -> ServedAnswer:
        """Expired at the deadline; failed if the caller gave up before it."""
        caller = self._ask.caller
        end: End = "expired" if self._until == (caller.total if pieces else caller.ttft) else "failed"
        why = f"no {'whole answer' if pieces else 'token'} within {self._until:g} s"
        total = perf_counter() - self._due
        return ServedAnswer(self._ask, end, tuple(pieces), total, len(pieces), why=why, behind=self._behind)

    def _left(self) -> float:
        return self._due + self._until - perf_counter()


_REFUSALS = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
_PROBES = (8, 200)
_PROBE_SECONDS = 60.0


class GrpcCaller:
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

    async def ask(self, ask: Ask, due: float) -> ServedAnswer:
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
        return ServedAnswer(ask, "answered", tuple(pieces), perf_counter() - due, tokens, prompt, behind=behind)

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


def _turned_away(
    ask: Ask, error: aio.AioRpcError, pieces: tuple[float, ...], total: float, behind: float
) -> ServedAnswer:
    why = f"{error.code().name.lower()}: {_one_line(error)}"
    if error.code() in _REFUSALS and not pieces:
        return ServedAnswer(ask, "refused", total=total, why=why, retry_after=_told(error), behind=behind)
    end: End = "expired" if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED else "failed"
    return ServedAnswer(ask, end, pieces, total, len(pieces), why=why, behind=behind)


def _told(error: aio.AioRpcError) -> bool:
    details = [value for key, value in error.trailing_metadata() or () if key == ERROR_METADATA_KEY]
    return any(
        isinstance(value, bytes) and wire.Error.FromString(value).HasField("retry_after_ms") for value in details
    )


def _one_line(error: aio.AioRpcError) -> str:
    return " ".join((error.details() or "").split())[:200]


_END = b"[DONE]"
_EXPIRED = ("deadline", "timeout_error")


class Event(NamedTuple):
    text: bool  # whether it has text
    usage: dict[str, Any] | None = None
    error: str | None = None
    expired: bool = False  # the deadline has passed
    finished: bool = False


def event_of(data: bytes) -> Event:
    try:
        fields = json.loads(data)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        return Event(False, error=f"an event that is no JSON object: {data[:60]!r}")
    if fields.get("error"):
        return Event(False, error=message_of(fields), expired=_kind_of(fields["error"]) in _EXPIRED)
    usage = fields.get("usage")
    choice = (fields.get("choices") or [{}])[0]
    delta = choice.get("delta") or {}
    text = delta.get("content") or delta.get("reasoning_content") or choice.get("text")
    return Event(bool(text), usage if isinstance(usage, dict) else None, finished=bool(choice.get("finish_reason")))


def message_of(fields: Any) -> str:
    """Of an error of OpenAI, of FastAPI, or of plain text."""
    error = fields.get("error", fields) if isinstance(fields, dict) else fields
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return " ".join(str(error).split())[:200]


def _kind_of(error: Any) -> str:
    return str(error.get("code") or error.get("type")) if isinstance(error, dict) else ""


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
# words of the prompts for calibrating token counts


@dataclass(slots=True)
class StreamState:
    """What a response has brought so far. `pieces` are times since it was due."""

    due: float
    on_first: Callable[[], None] = lambda: None
    pieces: list[float] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    error: str | None = None
    expired: bool = False
    finished: bool = False
    body: bytes = b""
    _rest: bytes = b""

    def add(self, part: bytes) -> None:
        self.body = (self.body + part)[:_MOST_ERROR]
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and (data := line[5:].strip()) != _END:
                self._add_event(event_of(data))

    def _add_event(self, event: Event) -> None:
        if event.text:
            self.pieces.append(perf_counter() - self.due)
            if len(self.pieces) == 1:
                self.on_first()
        self.usage = event.usage or self.usage
        self.error = event.error or self.error
        self.expired = self.expired or event.expired
        self.finished = self.finished or event.finished

    @property
    def message(self) -> str:
        try:
            return message_of(json.loads(self.body))
        except ValueError:
            return message_of(self.body.decode("utf-8", "replace"))


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
        self._class_fields = class_fields or fields_for(model)
        self._is_ours = is_octet(model)
        self._key = f"authorization: Bearer {key}\r\n" if key else ""

    async def ask(self, ask: Ask, due: float) -> ServedAnswer:
        behind = perf_counter() - due
        request = self._request(prompt_of(ask, self._count), ask.answer_tokens, self._class_fields(ask.caller))
        patience = Patience(ask, due, self._give_up, behind)
        state = StreamState(due, patience.hears)
        try:
            async with patience.timer:
                response = await self._client.exchange(request, state.add)
        except OSError as error:
            if patience.timer.expired():
                return patience.hung_up(state.pieces)
            why = str(error) or type(error).__name__
            return ServedAnswer(ask, "failed", total=perf_counter() - due, why=why, behind=behind)
        total = perf_counter() - due
        if response.status == 200:
            return _ended(ask, state, total, behind)
        end: End = "refused" if response.status in _REFUSED_STATUSES else "failed"
        if response.status == _GATEWAY_TIMEOUT and self._is_ours:
            end = "expired"
        retry = end == "refused" and not {"retry-after", "retry-after-ms"}.isdisjoint(response.headers)
        why = f"{response.status}: {state.message}"
        return ServedAnswer(ask, end, total=total, why=why, retry_after=retry, behind=behind)

    async def check(self) -> str:
        await self._check_models()
        counts = [await self._probe(words) for words in _PROBES]
        if counts[0] is None or counts[1] is None:
            return "does not count tokens (no usage): a word of a prompt is taken for a token, a piece of an answer too"
        self._count = fit_count((_PROBES[0], counts[0]), (_PROBES[1], counts[1]))
        return f"{self._count.a_word:.3g} tokens a word, {self._count.around:.3g} around a prompt"

    async def close(self) -> None:
        self._client.close()

    async def _check_models(self) -> None:
        """Not every endpoint lists its models; a list must have ours."""
        request = http_request("GET", f"{self._origin.path}/models", self._origin.name, more=self._key)
        response, state = await self._exchange_once(request)
        try:
            listed = json.loads(state.body).get("data")
        except (ValueError, AttributeError):
            return
        if response.status == 200 and isinstance(listed, list):
            names = [str(each.get("id")) for each in listed if isinstance(each, dict)]
            if names and self._model not in names:
                raise ServeMistake(f"{self._where}: no model {self._model!r}, there are {', '.join(names[:8])}")

    async def _probe(self, words: int) -> int | None:
        response, state = await self._exchange_once(self._request(words_of(words, f"probe of {words}"), 2, {}))
        if response.status != 200:
            raise ServeMistake(f"{self._where}: {response.status}: {state.message}")
        kind = response.headers.get("content-type", "nothing")
        if "text/event-stream" not in kind:
            raise ServeMistake(f"{self._where}: asked for a stream of events (SSE), got {kind}")
        if state.error is not None or not (state.pieces or state.finished):
            raise ServeMistake(f"{self._where}: a stream without an answer: {state.error or 'no text in it'}")
        tokens = (state.usage or {}).get("prompt_tokens")
        return tokens if isinstance(tokens, int) else None

    async def _exchange_once(self, request: bytes) -> tuple[Response, StreamState]:
        state = StreamState(perf_counter())
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                return await self._client.exchange(request, state.add), state
        except TimeoutError as error:
            raise ServeMistake(f"{self._where}: no answer within {_PROBE_SECONDS:g} s") from error
        except Broken as error:
            raise ServeMistake(f"{self._where}: {error}") from error
        except OSError as error:
            raise ServeMistake(f"{self._where}: cannot be reached ({error})") from error

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


def _ended(ask: Ask, state: StreamState, total: float, behind: float) -> ServedAnswer:
    pieces, usage = tuple(state.pieces), state.usage or {}
    if state.error is not None or not state.finished:
        end: End = "expired" if state.expired else "failed"
        why = state.error or "the stream ended without a reason"
        return ServedAnswer(ask, end, pieces, total, len(pieces), why=why, behind=behind)
    tokens = usage.get("completion_tokens", len(pieces))
    return ServedAnswer(ask, "answered", pieces, total, tokens, usage.get("prompt_tokens"), behind=behind)


@dataclass(frozen=True, slots=True)
class Endpoint:
    kind: str  # http or grpc
    where: str
    model: str
    name: str
    class_fields: ClassFields | None = None  # None: chosen by the model's name


def named_apart(endpoints: Sequence[Endpoint]) -> list[Endpoint]:
    """Equal names are extended by the model, then by a number."""
    names = [each.name for each in endpoints]
    fuller = [each.name if names.count(each.name) == 1 else f"{each.name} {each.model}" for each in endpoints]
    counted = [
        name if fuller.count(name) == 1 else f"{name} ({fuller[: index + 1].count(name)})"
        for index, name in enumerate(fuller)
    ]
    return [replace(each, name=name) for each, name in zip(endpoints, counted, strict=True)]


def caller_of(endpoint: Endpoint, key: str | None, give_up: float) -> Caller:
    if endpoint.kind == "grpc":
        _check_key(key, endpoint.where, encrypted=False)
        return GrpcCaller(endpoint.where, endpoint.model, key, give_up)
    origin = parse_origin(endpoint.where)
    _check_key(key, origin.name, encrypted=origin.scheme == "https")
    return OpenAICaller(origin, endpoint.model, key, give_up, endpoint.class_fields)


def _check_key(key: str | None, where: str, *, encrypted: bool) -> None:
    if key is not None and not encrypted and not is_local(where):
        raise ServeMistake(f"the key would be sent to {where} in the clear: use https")
