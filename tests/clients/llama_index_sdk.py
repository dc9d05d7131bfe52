"""LlamaIndex's package for servers that speak OpenAI's dialect."""

import gc
from collections.abc import Generator
from typing import Any

import openai
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from tests.clients import steps
from tests.clients.place import Place, weather
from tests.clients.steps import Door, ToolRound


class Like(Door):
    client = "llama-index-llms-openai-like"
    uses = "OpenAILike(..., is_chat_model=True)"
    route = "/v1/chat/completions"

    def __init__(self, url: str) -> None:
        self.notes = {"cancel": ", when the closed generator is collected"}
        self._base = f"{url}/v1"

    def _model(self, name: str, max_tokens: int) -> OpenAILike:
        return OpenAILike(
            model=name,
            api_base=self._base,
            api_key="none",
            is_chat_model=True,
            is_function_calling_model=True,
            should_use_structured_outputs=True,
            max_tokens=max_tokens,
        )

    def chat(self, prompt: str) -> str:
        asked = [ChatMessage(steps.SYSTEM, role="system"), ChatMessage(prompt)]
        return self._model(steps.TALK, steps.SHORT).chat(asked).message.content or ""

    def turns(self) -> str:
        turns = [
            ChatMessage(steps.SYSTEM, role="system"),
            ChatMessage(steps.EARLIER),
            ChatMessage(steps.REPLY, role="assistant"),
            ChatMessage(steps.LATER),
        ]
        return self._model(steps.TALK, steps.SHORT).chat(turns).message.content or ""

    def stream(self, prompt: str, max_tokens: int) -> Generator[str]:
        chunks: Any = self._model(steps.TALK, max_tokens).stream_chat([ChatMessage(prompt)])
        try:
            for chunk in chunks:
                yield chunk.delta or ""
        finally:
            chunks.close()
            gc.collect()  # a closed generator of LlamaIndex keeps its connection in a reference cycle

    def structured(self) -> dict[str, Any]:
        answer = self._model(steps.TALK, steps.LONG).as_structured_llm(Place).complete(steps.PLACE)
        assert isinstance(answer.raw, Place)
        return answer.raw.model_dump()

    def tools(self) -> ToolRound:
        tools = [FunctionTool.from_defaults(weather, fn_schema=Place)]
        asked = [ChatMessage(steps.WEATHER)]
        model = self._model(steps.TOOLS, steps.LONG)
        answer = model.chat_with_tools(tools, chat_history=asked, tool_required=True)
        (call,) = model.get_tool_calls_from_response(answer)
        asked += [
            answer.message,
            ChatMessage(steps.RESULT, role="tool", additional_kwargs={"tool_call_id": call.tool_id}),
        ]
        last = self._model(steps.TOOLS, steps.SHORT).chat_with_tools(tools, chat_history=asked)
        return ToolRound(call.tool_name, call.tool_kwargs, last.message.content or "")

    def refused(self) -> object:
        tools = [FunctionTool.from_defaults(weather, fn_schema=Place)]
        return self._model(steps.TALK, steps.SHORT).chat_with_tools(tools, steps.WEATHER)

    def name_too_long(self, error: Exception) -> str:
        assert isinstance(error, openai.BadRequestError) and error.code == "context_length_exceeded", error
        return "`openai.BadRequestError` with `code` `context_length_exceeded`"


if __name__ == "__main__":
    steps.run(lambda url: [Like(url)])
