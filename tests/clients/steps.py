"""The steps that every client takes, and what the server must show for each. This module runs in the client's
environment, so it imports only the standard library: `python -m tests.clients.CLIENT URL FILE`."""

import asyncio
import json
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

from tests.patience import PATIENCE

TALK, TOOLS = "octet/talk", "octet/tools"
"""The model names: a small real model whose template shows no tools, and a random one whose template does."""
SYSTEM = "You answer in one short sentence."
HELLO = "What is the capital of France?"
EARLIER = "I am Ada. I live in a lighthouse near Oslo, and I collect old maps of the northern sea."
REPLY = "Nice to meet you, Ada."
LATER = "Where do I live?"
STORY = "Write a very long story about a ship, with many chapters."
PLACE = "Name a town, and say whether it rains there."
WEATHER = "What is the weather?"
DESCRIPTION = "The weather in a town."
RESULT = "rain"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"town": {"type": "string", "enum": ["Oslo", "Rome"]}, "rain": {"type": "boolean"}},
    "required": ["town", "rain"],
    "additionalProperties": False,
}
CHAT_TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "description": DESCRIPTION, "parameters": SCHEMA},
}
SHORT, LONG = 24, 500
"""Maximum lengths of answers, in tokens."""
TOO_LONG = (6_000, 450_000)
"""Numbers of words: more tokens than the context of `talk`, and more bytes than the router accepts."""
_CANCEL_AFTER = 3


class ToolRound(NamedTuple):
    """A call of the model, and its answer to the call's result."""

    name: str
    arguments: dict[str, Any]
    answer: str


class Door(ABC):
    """One API of the server, used through one class of the client. A refusal raises the client's own error."""

    client: str
    """Name of the client's package."""
    uses: str
    """What a caller of the client writes."""
    route: str
    """The route that the client then calls."""
    notes: Mapping[str, str] = {}
    """What a caller must know about a step."""

    @abstractmethod
    def chat(self, prompt: str) -> str:
        """Return a short answer of `TALK` to one user message, asked with `SYSTEM`."""

    @abstractmethod
    def stream(self, prompt: str, max_tokens: int) -> Generator[str]:
        """Yield the pieces of an answer of `TALK`. Closing the generator ends the request as the client does it."""

    @abstractmethod
    def turns(self) -> str:
        """Return the answer to `EARLIER`, `REPLY`, `LATER`, asked with `SYSTEM`."""

    @abstractmethod
    def structured(self) -> dict[str, Any]:
        """Return an answer that the client has parsed with `SCHEMA`."""

    @abstractmethod
    def tools(self) -> ToolRound:
        """Have `TOOLS` call the tool `weather`, and send `RESULT` back."""

    @abstractmethod
    def refused(self) -> object:
        """Offer a tool to `TALK`, which must raise."""

    @abstractmethod
    def name_too_long(self, error: Exception) -> str:
        """Return how the client names a prompt that is too long. Raise AssertionError for any other error."""


class Server:
    """What the server shows about the client's requests."""

    def __init__(self, url: str) -> None:
        self._url = url

    def prompt_tokens(self) -> int:
        """Return the length of the latest answered prompt."""
        (receipt,) = self._receipts("answered", 1)
        return int(receipt["usage"]["prompt_tokens"])

    def cancelled(self) -> set[str]:
        return {receipt["request_id"] for receipt in self._receipts("cancelled", 500)}

    def _receipts(self, outcome: str, limit: int) -> list[dict[str, Any]]:
        with urlopen(f"{self._url}/v1/receipts?outcome={outcome}&limit={limit}", timeout=PATIENCE) as response:  # noqa: S310
            return list(json.load(response)["receipts"])


def read_async(pieces: AsyncGenerator[str]) -> Generator[str]:
    """Yield from an asynchronous generator. Closing this generator closes it."""
    with asyncio.Runner() as runner:
        try:
            while (piece := runner.run(_next(pieces))) is not None:
                yield piece
        finally:
            runner.run(pieces.aclose())


async def _next(pieces: AsyncGenerator[str]) -> str | None:
    return await anext(pieces, None)


def run(doors: Callable[[str], Sequence[Door]]) -> None:
    """Take every step through every door, and write a JSON line for each door. Exit with 1 if a step failed."""
    url, file = sys.argv[1], Path(sys.argv[2])
    failed = False
    with file.open("w") as lines:
        for door in doors(url):
            taken = {}
            for step, take in STEPS.items():
                try:
                    taken[step] = take(door, Server(url)) + door.notes.get(step, "")
                except Exception as error:
                    traceback.print_exc()
                    taken[step], failed = f"FAILED: {type(error).__name__}: {error}"[:300], True
            line = {"client": door.client, "version": version(door.client), "uses": door.uses, "route": door.route}
            lines.write(json.dumps({**line, "steps": taken}) + "\n")
    sys.exit(failed)


def _chat(door: Door, server: Server) -> str:
    assert door.chat(HELLO).strip()
    return "yes"


def _stream(door: Door, server: Server) -> str:
    pieces = [piece for piece in door.stream(HELLO, SHORT) if piece]
    assert len(pieces) > 1, f"the answer came in one piece: {pieces}"
    return "yes"


def _turns(door: Door, server: Server) -> str:
    assert door.chat(HELLO)
    alone = server.prompt_tokens()
    assert door.turns().strip()
    assert server.prompt_tokens() > alone + 20, "the server must have seen the earlier turns"
    return "yes"


def _structured(door: Door, server: Server) -> str:
    answer = door.structured()
    assert answer.keys() == {"town", "rain"} and answer["town"] in ("Oslo", "Rome"), answer
    assert isinstance(answer["rain"], bool), answer
    return "yes"


def _tools(door: Door, server: Server) -> str:
    called = door.tools()
    assert called.name == "weather" and called.arguments["town"] in ("Oslo", "Rome"), called
    return "yes"


def _cancel(door: Door, server: Server) -> str:
    before = server.cancelled()
    pieces = door.stream(STORY, LONG)
    assert len(list(islice(pieces, _CANCEL_AFTER))) == _CANCEL_AFTER
    pieces.close()
    end = time.monotonic() + PATIENCE
    while server.cancelled() <= before:
        assert time.monotonic() < end, "the server has not seen the cancellation"
        time.sleep(0.05)
    return "yes"


def _too_long(door: Door, server: Server) -> str:
    (name,) = {_name_too_long(door, "word " * number) for number in TOO_LONG}
    return name


def _name_too_long(door: Door, prompt: str) -> str:
    try:
        door.chat(prompt)
    except Exception as error:
        return door.name_too_long(error)
    raise AssertionError(f"a prompt of {len(prompt):,} bytes was answered")


def _refused(door: Door, server: Server) -> str:
    try:
        door.refused()
    except Exception as error:
        assert "does not support tools" in str(error), error
        return f"`{type(error).__name__}`"
    raise AssertionError("a model without tools took a tool")


STEPS: dict[str, Callable[[Door, Server], str]] = {
    "chat": _chat,
    "stream": _stream,
    "turns": _turns,
    "structured": _structured,
    "tools": _tools,
    "cancel": _cancel,
    "too long": _too_long,
    "refused": _refused,
}
