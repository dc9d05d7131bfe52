"""Anthropic's package for Python: Messages."""

import json
from collections.abc import Generator
from typing import Any

import anthropic

from tests.clients import steps
from tests.clients.steps import Door, ToolRound

_TOOL: Any = {"name": "weather", "description": steps.DESCRIPTION, "input_schema": steps.SCHEMA}


class Messages(Door):
    client = "anthropic"
    uses = "client.messages"
    route = "/v1/messages"

    def __init__(self, url: str) -> None:
        self._client = anthropic.Anthropic(base_url=url, api_key="none")

    def _ask(self, *contents: str) -> str:
        roles = ("user", "assistant", "user")
        turns: Any = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)]
        answer = self._client.messages.create(
            model=steps.TALK, system=steps.SYSTEM, messages=turns, max_tokens=steps.SHORT
        )
        return "".join(block.text for block in answer.content if block.type == "text")

    def chat(self, prompt: str) -> str:
        return self._ask(prompt)

    def turns(self) -> str:
        return self._ask(steps.EARLIER, steps.REPLY, steps.LATER)

    def stream(self, prompt: str, max_tokens: int) -> Generator[str]:
        asked: Any = [{"role": "user", "content": prompt}]
        with self._client.messages.stream(model=steps.TALK, messages=asked, max_tokens=max_tokens) as stream:
            yield from stream.text_stream

    def structured(self) -> dict[str, Any]:
        answer = self._client.messages.create(
            model=steps.TALK,
            messages=[{"role": "user", "content": steps.PLACE}],
            max_tokens=steps.LONG,
            output_config={"format": {"type": "json_schema", "schema": steps.SCHEMA}},
        )
        return dict(json.loads("".join(block.text for block in answer.content if block.type == "text")))

    def tools(self) -> ToolRound:
        turns: Any = [{"role": "user", "content": steps.WEATHER}]
        choice: Any = {"type": "tool", "name": "weather"}
        with self._client.messages.stream(
            model=steps.TOOLS, messages=turns, tools=[_TOOL], tool_choice=choice, max_tokens=steps.LONG
        ) as stream:
            answer = stream.get_final_message()
        (call,) = [block for block in answer.content if block.type == "tool_use"]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": steps.RESULT}
        turns += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
        last = self._client.messages.create(model=steps.TOOLS, messages=turns, tools=[_TOOL], max_tokens=steps.SHORT)
        text = "".join(block.text for block in last.content if block.type == "text")
        return ToolRound(call.name, dict(call.input), text)

    def refused(self) -> object:
        asked: Any = [{"role": "user", "content": steps.WEATHER}]
        return self._client.messages.create(model=steps.TALK, messages=asked, tools=[_TOOL], max_tokens=9)

    def name_too_long(self, error: Exception) -> str:
        assert isinstance(error, anthropic.BadRequestError) and "prompt is too long" in error.message, error
        return "`BadRequestError` with the words `prompt is too long`"


if __name__ == "__main__":
    steps.run(lambda url: [Messages(url)])
