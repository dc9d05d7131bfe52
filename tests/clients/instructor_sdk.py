"""Instructor over OpenAI's package. Every answer is a pydantic model; tools are its default way to ask for one."""

from collections.abc import AsyncGenerator, Generator
from typing import Any

import instructor
import openai
from pydantic import BaseModel

from tests.clients import steps
from tests.clients.place import Place
from tests.clients.steps import Door, ToolRound


class Story(BaseModel):
    text: str


class FromOpenAI(Door):
    client = "instructor"
    uses = "from_openai(client, mode=Mode.JSON_SCHEMA)"
    route = "/v1/chat/completions"

    def __init__(self, url: str) -> None:
        self.notes = {
            "stream": ", with `AsyncOpenAI`",
            "tools": ", with `from_openai(client)`",
            "cancel": ", with `AsyncOpenAI`, when its client is closed",
        }
        self._base = f"{url}/v1"
        client = openai.OpenAI(base_url=self._base, api_key="none")
        self._schema = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
        self._tools = instructor.from_openai(client)

    def _ask(self, *contents: str) -> str:
        roles = ("system", "user", "assistant", "user")
        texts = (steps.SYSTEM, *contents)
        messages: Any = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
        answer = self._schema.create(model=steps.TALK, messages=messages, response_model=None, max_tokens=steps.SHORT)
        return str(answer.choices[0].message.content)

    def chat(self, prompt: str) -> str:
        return self._ask(prompt)

    def turns(self) -> str:
        return self._ask(steps.EARLIER, steps.REPLY, steps.LATER)

    def stream(self, prompt: str, max_tokens: int) -> Generator[str]:
        return steps.read_async(self._stream(prompt, max_tokens))

    async def _stream(self, prompt: str, max_tokens: int) -> AsyncGenerator[str]:
        """Stream with an asynchronous client: the other one collects all parts first."""
        client = openai.AsyncOpenAI(base_url=self._base, api_key="none")
        asked: Any = [{"role": "user", "content": prompt}]
        parts = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA).create_partial(
            model=steps.TALK, messages=asked, response_model=Story, max_tokens=max_tokens
        )
        try:
            async for part in parts:
                yield part.text or ""
        finally:
            await parts.aclose()
            await client.close()

    def structured(self) -> dict[str, Any]:
        asked: Any = [{"role": "user", "content": steps.PLACE}]
        return dict(self._schema.create(model=steps.TALK, messages=asked, response_model=Place).model_dump())

    def tools(self) -> ToolRound:
        asked: Any = [{"role": "user", "content": steps.WEATHER}]
        called = self._tools.create(model=steps.TOOLS, messages=asked, response_model=Place, max_retries=0)
        return ToolRound("weather", called.model_dump(), "")

    def refused(self) -> object:
        asked: Any = [{"role": "user", "content": steps.WEATHER}]
        return self._tools.create(model=steps.TALK, messages=asked, response_model=Place)

    def name_too_long(self, error: Exception) -> str:
        assert isinstance(error, openai.BadRequestError) and error.code == "context_length_exceeded", error
        return "`openai.BadRequestError` with `code` `context_length_exceeded`"


if __name__ == "__main__":
    steps.run(lambda url: [FromOpenAI(url)])
