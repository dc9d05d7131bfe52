"""Calls to an OpenAI endpoint: chat completions, streamed."""

import asyncio
import json
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from bench.serving.answer import Answer, End
from bench.serving.asks import Ask
from bench.serving.events import Event, events, message_of
from bench.serving.hang_up import Patience
from bench.serving.http import Broken, Connection, Connections, Exchange, Origin
from bench.serving.told import FieldsForClass, is_octet, told_to
from bench.serving.usage import ServeMistake
from bench.serving.words import TokenCount, fit_count, prompt_of, words_of

_REFUSALS = (429, 503)
_EXPIRED = 504
_PROBES = (8, 200)
"""Words of the prompts that show how tokens are counted."""
_PROBE_SECONDS = 60.0


@dataclass(slots=True)
class _Heard:
    """What a stream has brought so far."""

    pieces: list[float] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    error: str | None = None
    expired: bool = False
    finished: bool = False

    def add(self, event: Event, at: float) -> None:
        if event.text:
            self.pieces.append(at)
        self.usage = event.usage or self.usage
        self.error = event.error or self.error
        self.expired = self.expired or event.expired
        self.finished = self.finished or event.finished


class OpenAICaller:
    def __init__(
        self, origin: Origin, model: str, key: str | None, give_up: float, told: FieldsForClass | None = None
    ) -> None:
        """`told`: as the model's name says whose it is, where nothing else is said."""
        self._connections = Connections(origin)
        self._model = model
        self._give_up = give_up
        self._count = TokenCount()
        self._told = told or told_to(model)
        self._is_ours = is_octet(model)
        authorization = f"authorization: Bearer {key}\r\n" if key else ""
        self._head = f"host: {origin.name}\r\n{authorization}content-type: application/json\r\n"

    async def ask(self, ask: Ask, due: float) -> Answer:
        behind = perf_counter() - due
        request, heard = self._request(self._body(ask)), _Heard()
        patience = Patience(ask, due, self._give_up, behind)
        try:
            async with patience.timer:
                return await self._exchange(ask, request, heard, patience, due, behind)
        except (OSError, Broken) as error:
            if patience.timer.expired():
                return patience.hung_up(heard.pieces)
            why = str(error) or type(error).__name__
        return Answer(ask, "failed", total=perf_counter() - due, why=why, behind=behind)

    async def check(self) -> str:
        await self._check_models()
        counts = [await self._probe(words) for words in _PROBES]
        if counts[0] is None or counts[1] is None:
            return "does not count tokens (no usage): a word of a prompt is taken for a token, a piece of an answer too"
        self._count = fit_count((_PROBES[0], counts[0]), (_PROBES[1], counts[1]))
        return f"{self._count.a_word:.3g} tokens a word, {self._count.around:.3g} around a prompt"

    async def close(self) -> None:
        self._connections.close()

    async def _exchange(
        self, ask: Ask, request: bytes, heard: _Heard, patience: Patience, due: float, behind: float
    ) -> Answer:
        connection = await self._connections.take()
        exchange = Exchange(connection)
        try:
            head = await exchange.send(request)
            if head.status != 200:
                why = f"{head.status}: {message_of(_json(await exchange.whole_body()))}"
                said = "retry-after" in head.headers or "retry-after-ms" in head.headers
                return self._turned_away(ask, head.status, why, said, perf_counter() - due, behind)
            async for event in events(exchange.body()):
                heard.add(event, perf_counter() - due)
                if len(heard.pieces) == 1:
                    patience.hears()
            return _ended(ask, heard, perf_counter() - due, behind)
        finally:
            self._connections.give_back(connection, reusable=exchange.reusable)

    def _turned_away(self, ask: Ask, status: int, why: str, said: bool, total: float, behind: float) -> Answer:
        if status in _REFUSALS:
            return Answer(ask, "refused", total=total, why=why, retry_after=said, behind=behind)
        end: End = "expired" if status == _EXPIRED and self._is_ours else "failed"
        return Answer(ask, end, total=total, why=why, behind=behind)

    async def _check_models(self) -> None:
        """Not every endpoint lists its models; one that does must have ours among them."""
        status, fields = await self._asked_once("GET", "/models", b"")
        listed = fields.get("data") if isinstance(fields, dict) else None
        if status == 200 and isinstance(listed, list):
            names = [str(each.get("id")) for each in listed if isinstance(each, dict)]
            if names and self._model not in names:
                raise ServeMistake(f"{self._where}: no model {self._model!r}, there are {', '.join(names[:8])}")

    async def _probe(self, words: int) -> int | None:
        """The prompt's tokens, of an answer that is looked at closely."""
        body = self._fields(words_of(words, f"probe of {words}"), 2, {})
        connection, exchange, head = await self._begin(self._request(body))
        try:
            if head.status != 200:
                raise ServeMistake(f"{self._where}: {head.status}: {message_of(_json(await exchange.whole_body()))}")
            kind = head.headers.get("content-type", "nothing")
            if "text/event-stream" not in kind:
                raise ServeMistake(f"{self._where}: asked for a stream of events (SSE), got {kind}")
            heard = _Heard()
            async with asyncio.timeout(_PROBE_SECONDS):
                async for event in events(exchange.body()):
                    heard.add(event, 0.0)
        except (TimeoutError, Broken) as error:
            raise ServeMistake(f"{self._where}: {error or 'an answer that does not end'}") from error
        finally:
            self._connections.give_back(connection, reusable=exchange.reusable)
        if heard.error is not None or not (heard.pieces or heard.finished):
            raise ServeMistake(f"{self._where}: a stream without an answer: {heard.error or 'no text in it'}")
        tokens = (heard.usage or {}).get("prompt_tokens")
        return tokens if isinstance(tokens, int) else None

    async def _asked_once(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        connection, exchange, head = await self._begin(self._request(body, method, path))
        try:
            return head.status, _json(await exchange.whole_body())
        except Broken as error:
            raise ServeMistake(f"{self._where}: {error}") from error
        finally:
            self._connections.give_back(connection, reusable=exchange.reusable)

    async def _begin(self, request: bytes) -> tuple[Connection, Exchange, Any]:
        connection: Connection | None = None
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                connection = await self._connections.take()
                exchange = Exchange(connection)
                head = await exchange.send(request)
                taken, connection = connection, None
                return taken, exchange, head
        except TimeoutError as error:
            raise ServeMistake(f"{self._where}: no answer within {_PROBE_SECONDS:g} s") from error
        except Broken as error:
            raise ServeMistake(f"{self._where}: {error}") from error
        except OSError as error:
            raise ServeMistake(f"{self._where}: cannot be reached ({error})") from error
        finally:
            if connection is not None:
                self._connections.give_back(connection, reusable=False)

    @property
    def _where(self) -> str:
        origin = self._connections.origin
        return f"{origin.scheme}://{origin.name}{origin.path}"

    def _body(self, ask: Ask) -> bytes:
        return self._fields(prompt_of(ask, self._count), ask.answer_tokens, self._told(ask.caller))

    def _fields(self, prompt: str, tokens: int, more: dict[str, Any]) -> bytes:
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
        return json.dumps(fields).encode()

    def _request(self, body: bytes, method: str = "POST", path: str = "/chat/completions") -> bytes:
        first = f"{method} {self._connections.origin.path}{path} HTTP/1.1\r\n"
        return f"{first}{self._head}content-length: {len(body)}\r\n\r\n".encode() + body


def _ended(ask: Ask, heard: _Heard, total: float, behind: float) -> Answer:
    pieces, usage = tuple(heard.pieces), heard.usage or {}
    if heard.error is not None or not heard.finished:
        end: End = "expired" if heard.expired else "failed"
        why = heard.error or "the stream ended without a reason"
        return Answer(ask, end, pieces, total, len(pieces), why=why, behind=behind)
    tokens = usage.get("completion_tokens", len(pieces))
    return Answer(ask, "answered", pieces, total, tokens, usage.get("prompt_tokens"), behind=behind)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")
