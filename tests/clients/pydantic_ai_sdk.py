"""Pydantic AI over OpenAI's Chat Completions and Responses, and over Anthropic's Messages."""

from collections.abc import Generator
from typing import Any

from pydantic_ai import Agent, NativeOutput
from pydantic_ai.direct import model_request_sync
from pydantic_ai.exceptions import ModelContextWindowExceededError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from tests.clients import steps
from tests.clients.place import Place, weather
from tests.clients.steps import Door, ToolRound

_WEATHER = ToolDefinition(name="weather", description=steps.DESCRIPTION, parameters_json_schema=steps.SCHEMA)


class Model(Door):
    client = "pydantic-ai-slim"

    def __init__(self, uses: str, route: str, cls: Any, provider: Any, *, native: bool = True) -> None:
        """`native` is whether the client sends a schema. Otherwise it asks for structured answers through a tool."""
        self.uses, self.route = f"{uses}(...)", route
        self._cls, self._provider, self._native = cls, provider, native
        self.notes = {} if native else {"structured": ", through a tool"}

    def _agent(self, model: str, max_tokens: int, **options: Any) -> Any:
        made = self._cls(model, provider=self._provider)
        return Agent(made, model_settings={"max_tokens": max_tokens}, **options)

    def chat(self, prompt: str) -> str:
        return str(self._agent(steps.TALK, steps.SHORT, instructions=steps.SYSTEM).run_sync(prompt).output)

    def turns(self) -> str:
        earlier: list[ModelMessage] = [
            ModelRequest(parts=[UserPromptPart(steps.EARLIER)]),
            ModelResponse(parts=[TextPart(steps.REPLY)]),
        ]
        agent = self._agent(steps.TALK, steps.SHORT, instructions=steps.SYSTEM)
        return str(agent.run_sync(steps.LATER, message_history=earlier).output)

    def stream(self, prompt: str, max_tokens: int) -> Generator[str]:
        with self._agent(steps.TALK, max_tokens).run_stream_sync(prompt) as result:
            yield from result.stream_text(delta=True, debounce_by=None)

    def structured(self) -> dict[str, Any]:
        form, model = (NativeOutput(Place), steps.TALK) if self._native else (Place, steps.TOOLS)
        answer = self._agent(model, steps.LONG, output_type=form).run_sync(steps.PLACE).output
        assert isinstance(answer, Place)
        return answer.model_dump()

    def tools(self) -> ToolRound:
        asked: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart(steps.WEATHER)])]
        must_call = ModelRequestParameters(function_tools=[_WEATHER], allow_text_output=False)
        model = self._cls(steps.TOOLS, provider=self._provider)
        once: ModelSettings = {"parallel_tool_calls": False}
        answer = model_request_sync(model, asked, model_settings=once, model_request_parameters=must_call)
        (call,) = answer.tool_calls
        result = ToolReturnPart(call.tool_name, steps.RESULT, tool_call_id=call.tool_call_id)
        may_call = ModelRequestParameters(function_tools=[_WEATHER])
        last = model_request_sync(
            model,
            [*asked, answer, ModelRequest(parts=[result])],
            model_settings={"max_tokens": steps.SHORT},
            model_request_parameters=may_call,
        )
        return ToolRound(call.tool_name, call.args_as_dict(), last.text or "")

    def refused(self) -> object:
        return self._agent(steps.TALK, steps.SHORT, tools=[weather]).run_sync(steps.WEATHER)

    def name_too_long(self, error: Exception) -> str:
        assert isinstance(error, ModelContextWindowExceededError), repr(error)
        return "`ModelContextWindowExceededError`"


def doors(url: str) -> list[Door]:
    openai = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    anthropic = AnthropicProvider(base_url=url, api_key="none")
    return [
        Model("OpenAIChatModel", "/v1/chat/completions", OpenAIChatModel, openai),
        Model("OpenAIResponsesModel", "/v1/responses", OpenAIResponsesModel, openai),
        Model("AnthropicModel", "/v1/messages", AnthropicModel, anthropic, native=False),
    ]


if __name__ == "__main__":
    steps.run(doors)
