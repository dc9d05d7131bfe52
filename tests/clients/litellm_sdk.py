"""LiteLLM's package: OpenAI's Chat Completions and Anthropic's Messages behind one function."""

import json
from collections.abc import AsyncGenerator, Generator
from typing import Any

import litellm

from tests.clients import steps
from tests.clients.place import Place
from tests.clients.steps import Door, ToolRound


class Completion(Door):
    client = "litellm"
    notes: dict[str, str]

    def __init__(self, provider: str, api_base: str, route: str, structured: str = steps.TALK) -> None:
        """`structured` is a model for structured answers. LiteLLM asks for them through a tool if it knows a model of
        Anthropic's API only by name."""
        self.uses, self.route = f'completion("{provider}/...")', route
        self._provider, self._api_base, self._structured = provider, api_base, structured
        self.notes = {"cancel": ", with `acompletion`"}
        if structured == steps.TOOLS:
            self.notes["structured"] = ", through a tool"

    def _complete(self, model: str, messages: list[Any], **options: Any) -> Any:
        return litellm.completion(**self._arguments(model), messages=messages, **{"max_tokens": steps.SHORT, **options})

    def _arguments(self, model: str) -> dict[str, Any]:
        return {"model": f"{self._provider}/{model}", "api_base": self._api_base, "api_key": "none"}

    def _messages(self, *contents: str) -> list[Any]:
        roles = ("system", "user", "assistant", "user")
        return [{"role": role, "content": text} for role, text in zip(roles, (steps.SYSTEM, *contents), strict=False)]

    def chat(self, prompt: str) -> str:
        return str(self._complete(steps.TALK, self._messages(prompt)).choices[0].message.content)

    def turns(self) -> str:
        messages = self._messages(steps.EARLIER, steps.REPLY, steps.LATER)
        return str(self._complete(steps.TALK, messages).choices[0].message.content)

    def stream(self, prompt: str, max_tokens: int) -> Generator[str]:
        return steps.read_async(self._stream(prompt, max_tokens))

    async def _stream(self, prompt: str, max_tokens: int) -> AsyncGenerator[str]:
        """Stream with `acompletion`: only the asynchronous stream of LiteLLM can be closed."""
        messages: list[Any] = self._messages(prompt)
        arguments = self._arguments(steps.TALK)
        chunks: Any = await litellm.acompletion(**arguments, messages=messages, max_tokens=max_tokens, stream=True)
        try:
            async for chunk in chunks:
                yield chunk.choices[0].delta.content or ""
        finally:
            await chunks.aclose()

    def structured(self) -> dict[str, Any]:
        answer = self._complete(
            self._structured, self._messages(steps.PLACE), response_format=Place, max_tokens=steps.LONG
        )
        return Place.model_validate_json(answer.choices[0].message.content).model_dump()

    def tools(self) -> ToolRound:
        messages, choice = self._messages(steps.WEATHER), {"type": "function", "function": {"name": "weather"}}
        answer = self._complete(
            steps.TOOLS, messages, tools=[steps.CHAT_TOOL], tool_choice=choice, max_tokens=steps.LONG
        )
        message = answer.choices[0].message
        (call,) = message.tool_calls
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": steps.RESULT}]
        last = self._complete(steps.TOOLS, messages, tools=[steps.CHAT_TOOL])
        text = last.choices[0].message.content or ""
        return ToolRound(call.function.name, json.loads(call.function.arguments), text)

    def refused(self) -> object:
        return self._complete(steps.TALK, self._messages(steps.WEATHER), tools=[steps.CHAT_TOOL])

    def name_too_long(self, error: Exception) -> str:
        assert isinstance(error, litellm.ContextWindowExceededError), error
        return "`ContextWindowExceededError`"


if __name__ == "__main__":
    steps.run(
        lambda url: [
            Completion("openai", f"{url}/v1", "/v1/chat/completions"),
            Completion("anthropic", url, "/v1/messages", structured=steps.TOOLS),
        ]
    )
