"""A prompt has the same limit at every door, and the same typed error above it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from octet import AsyncClient, InvalidRequest
from octet.limits import MAX_PROMPT_BYTES
from tests.octet.cli.chat.test_router import octet_with_errors
from tests.router.http.harness import HttpHarness, running_http_router
from tests.router.serving.spy import SpyReplica, answer, running_spy

LIMIT = f"at most {MAX_PROMPT_BYTES:,} bytes"
CHAT: dict[str, Any] = {"model": "octet/writer", "max_tokens": 8}


class Place(NamedTuple):
    fronted: HttpHarness
    spy: SpyReplica


@asynccontextmanager
async def running() -> AsyncIterator[Place]:
    async with running_spy(answer) as spy, running_http_router({"writer": [spy.address]}) as fronted:
        yield Place(fronted, spy)


async def post(place: Place, path: str, **body: Any) -> str:
    """Return the error, or "" if the request was accepted."""
    response = await place.fronted.post(json.dumps(body).encode(), path)
    return "" if response.status < 300 else response.body.decode()


async def call(place: Place, **options: Any) -> str:
    async with AsyncClient(place.fronted.routed.address) as client:
        try:
            await client.infer(force="writer", **options)
        except InvalidRequest as error:
            return f"{error.reason} {error.limit}"
    return ""


async def submit(place: Place, text: str) -> str:
    async with AsyncClient(place.fronted.routed.address) as client:
        try:
            await client.jobs.submit(text, force="writer")
        except InvalidRequest as error:
            return f"{error.reason} {error.limit}"
    return ""


async def command(place: Place, *words: str, text: str) -> str:
    status, _, err = await octet_with_errors(place.fronted.routed.address, *words, typed=text)
    return "" if status == 0 else err


def turn(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


DOORS: dict[str, Callable[[Place, str], Awaitable[str]]] = {
    "gRPC, prompt": lambda place, text: call(place, prompt=text),
    "gRPC, body": lambda place, text: call(place, prompt="x", body=text[3:]),  # with two newlines between them
    "gRPC, messages": lambda place, text: call(place, messages=turn(text)),
    "gRPC, job": submit,
    "/v1/infer, prompt": lambda place, text: post(place, "/v1/infer", prompt=text, force_specialists=["writer"]),
    "/v1/infer, messages": lambda place, text: post(
        place, "/v1/infer", messages=turn(text), force_specialists=["writer"]
    ),
    "/v1/jobs": lambda place, text: post(place, "/v1/jobs", prompt=text, force_specialists=["writer"]),
    "OpenAI chat": lambda place, text: post(place, "/v1/chat/completions", **CHAT, messages=turn(text)),
    "OpenAI completions": lambda place, text: post(place, "/v1/completions", **CHAT, prompt=text),
    "OpenAI responses": lambda place, text: post(place, "/v1/responses", model=CHAT["model"], input=text),
    "Anthropic": lambda place, text: post(place, "/v1/messages", **CHAT, messages=turn(text)),
    "octet generate": lambda place, text: command(place, "generate", "--force", "writer", text=text),
    "octet chat": lambda place, text: command(place, "chat", "--force", "writer", text=text),
}


async def test_every_door_has_the_same_limit() -> None:
    async with running() as place:
        for door, ask in DOORS.items():
            fits, refused = await asyncio.gather(
                ask(place, "x" * MAX_PROMPT_BYTES), ask(place, "x" * (MAX_PROMPT_BYTES + 1))
            )
            assert fits == "", door
            assert LIMIT.removeprefix("at most ") in refused, door
            if door.startswith("gRPC"):
                assert refused == f"prompt_too_long {LIMIT}", door
            if door.startswith(("/v1", "OpenAI")):
                error = json.loads(refused)["error"]
                assert (error["code"], error["limit"]) == ("context_length_exceeded", LIMIT), door


async def test_json_makes_the_limit_neither_smaller_nor_larger() -> None:
    """JSON may write a letter of two bytes with six. Bodies and requests that are far too large name the same limit."""
    async with running() as place:
        text = "\u0436" * (MAX_PROMPT_BYTES // 2)
        assert await post(place, "/v1/infer", prompt=text, force_specialists=["writer"]) == ""
        assert place.spy.asked[-1].chat.messages[-1].content == text
        large = "x" * (2 * MAX_PROMPT_BYTES)
        assert await call(place, prompt=large) == f"prompt_too_long {LIMIT}"
        far = await post(place, "/v1/infer", prompt=2 * large, force_specialists=["writer"])
        assert json.loads(far)["error"]["limit"] == LIMIT
