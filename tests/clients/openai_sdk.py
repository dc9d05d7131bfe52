"""OpenAI's package for Python: Chat Completions and Responses."""

import json
from collections.abc import Generator
from typing import Any

import openai

from tests.clients import steps
from tests.clients.place import Place
from tests.clients.steps import Door, ToolRound

_TOOL: Any = {
    "type": "function",
    "name": "weather",
    "description": steps.DESCRIPTION,
    "parameters": steps.SCHEMA,
    "strict": True,
}


class _OpenAI(Door):
    client = "openai"

    def __init__(self, url: str) -> None:
        self._client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")

    def name_too_long(self, error: Exception) -> str:
        assert isinstance(error, openai.BadRequestError) and error.code == "context_length_exceeded", error
        return "`BadRequestError` with `code` `context_length_exceeded`"


class Chat(_OpenAI):
    uses = "client.chat.completions"
    route = "/v1/chat/completions"

    def _messages(self, *contents: str) -> Any:
        roles = ("system", "user", "assistant", "user")
        return [{"role": role, "content": text} for role, text in zip(roles, (steps.SYSTEM, *contents), strict=False)]

    def _ask(self, *contents: str) -> str:
        answer = self._client.chat.completions.create(
            model=steps.TALK, messages=self._messages(*contents), max_completion_tokens=steps.SHORT
        )
        return answer.choices[0].message.content or ""

    def chat(self, prompt: str) -> str:
        return self._ask(prompt)

    def turns(self) -> str:
        return self._ask(steps.EARLIER, steps.REPLY, steps.LATER)

    def stream(self, prompt: str, max_tokens: int) -> Generator[str]:
        with self._client.chat.completions.create(
            model=steps.TALK, messages=self._messages(prompt), max_completion_tokens=max_tokens, stream=True
        ) as chunks:
            for chunk in chunks:
                yield chunk.choices[0].delta.content or ""

    def structured(self) -> dict[str, Any]:
        answer = self._client.chat.completions.parse(
            model=steps.TALK, messages=self._messages(steps.PLACE), response_format=Place
        )
        place = answer.choices[0].message.parsed
        assert place is not None
        return place.model_dump()

    def tools(self) -> ToolRound:
        messages = self._messages(steps.WEATHER)
        tools = [steps.CHAT_TOOL]
        create = self._client.chat.completions.create
        choice: Any = {"type": "function", "function": {"name": "weather"}}
        with self._client.chat.completions.stream(
            model=steps.TOOLS, messages=messages, tools=tools, tool_choice=choice
        ) as stream:
            message = stream.get_final_completion().choices[0].message
        (call,) = message.tool_calls or []
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": steps.RESULT}]
        last = create(model=steps.TOOLS, messages=messages, tools=tools, max_completion_tokens=steps.SHORT)
        return ToolRound(call.function.name, json.loads(call.function.arguments), last.choices[0].message.content or "")

    def refused(self) -> object:
        messages = self._messages(steps.WEATHER)
        return self._client.chat.completions.create(model=steps.TALK, messages=messages, tools=[steps.CHAT_TOOL])


class Responses(_OpenAI):
    uses = "client.responses"
    route = "/v1/responses"

    def chat(self, prompt: str) -> str:
        create = self._client.responses.create
        answer = create(model=steps.TALK, instructions=steps.SYSTEM, input=prompt, max_output_tokens=steps.SHORT)
        return answer.output_text

    def turns(self) -> str:
        turns: Any = [
            {"role": "user", "content": steps.EARLIER},
            {"role": "assistant", "content": steps.REPLY},
            {"role": "user", "content": steps.LATER},
        ]
        create = self._client.responses.create
        first = create(model=steps.TALK, instructions=steps.SYSTEM, input=turns, max_output_tokens=steps.SHORT)
        later = create(
            model=steps.TALK,
            instructions=steps.SYSTEM,
            input=steps.LATER,
            previous_response_id=first.id,
            max_output_tokens=steps.SHORT,
        )
        assert later.usage is not None and first.usage is not None
        assert later.usage.input_tokens > first.usage.input_tokens, "previous_response_id must lead to the first answer"
        return later.output_text

    def stream(self, prompt: str, max_tokens: int) -> Generator[str]:
        with self._client.responses.create(
            model=steps.TALK, input=prompt, max_output_tokens=max_tokens, stream=True
        ) as events:
            for event in events:
                if event.type == "response.output_text.delta":
                    yield event.delta

    def structured(self) -> dict[str, Any]:
        answer = self._client.responses.parse(model=steps.TALK, input=steps.PLACE, text_format=Place)
        assert answer.output_parsed is not None
        return answer.output_parsed.model_dump()

    def tools(self) -> ToolRound:
        tools = [_TOOL]
        choice: Any = {"type": "function", "name": "weather"}
        with self._client.responses.stream(
            model=steps.TOOLS, input=steps.WEATHER, tools=tools, tool_choice=choice
        ) as stream:
            answer = stream.get_final_response()
        (call,) = [item for item in answer.output if item.type == "function_call"]
        result: Any = [
            {"role": "user", "content": steps.WEATHER},
            *answer.output,
            {"type": "function_call_output", "call_id": call.call_id, "output": steps.RESULT},
        ]
        last = self._client.responses.create(
            model=steps.TOOLS, input=result, tools=tools, max_output_tokens=steps.SHORT
        )
        return ToolRound(call.name, json.loads(call.arguments), last.output_text)

    def refused(self) -> object:
        return self._client.responses.create(model=steps.TALK, input=steps.WEATHER, tools=[_TOOL])


if __name__ == "__main__":
    steps.run(lambda url: [Chat(url), Responses(url)])
