"""LangChain's packages for OpenAI's and Anthropic's APIs."""

from collections.abc import Generator
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI

from tests.clients import steps
from tests.clients.place import Place
from tests.clients.steps import Door, ToolRound


class Chat(Door):
    def __init__(self, client: str, uses: str, route: str, cls: Any, **options: Any) -> None:
        self.client, self.uses, self.route = client, uses, route
        self._cls, self._options = cls, options

    def _model(self, name: str, max_tokens: int) -> Any:
        return self._cls(model=name, api_key="none", max_tokens=max_tokens, **self._options)

    def chat(self, prompt: str) -> str:
        asked = [SystemMessage(steps.SYSTEM), HumanMessage(prompt)]
        return str(self._model(steps.TALK, steps.SHORT).invoke(asked).text)

    def turns(self) -> str:
        turns = [
            SystemMessage(steps.SYSTEM),
            HumanMessage(steps.EARLIER),
            AIMessage(steps.REPLY),
            HumanMessage(steps.LATER),
        ]
        return str(self._model(steps.TALK, steps.SHORT).invoke(turns).text)

    def stream(self, prompt: str, max_tokens: int) -> Generator[str]:
        chunks = self._model(steps.TALK, max_tokens).stream(prompt)
        try:
            for chunk in chunks:
                yield str(chunk.text)
        finally:
            chunks.close()

    def structured(self) -> dict[str, Any]:
        model = self._model(steps.TALK, steps.LONG).with_structured_output(Place, method="json_schema")
        answer = model.invoke(steps.PLACE)
        assert isinstance(answer, Place)
        return answer.model_dump()

    def tools(self) -> ToolRound:
        asked: list[Any] = [HumanMessage(steps.WEATHER)]
        answer = self._model(steps.TOOLS, steps.LONG).bind_tools([steps.CHAT_TOOL], tool_choice="weather").invoke(asked)
        (call,) = answer.tool_calls
        asked += [answer, ToolMessage(steps.RESULT, tool_call_id=call["id"])]
        last = self._model(steps.TOOLS, steps.SHORT).bind_tools([steps.CHAT_TOOL]).invoke(asked)
        return ToolRound(call["name"], call["args"], str(last.text))

    def refused(self) -> object:
        return self._model(steps.TALK, steps.SHORT).bind_tools([steps.CHAT_TOOL]).invoke(steps.WEATHER)

    def name_too_long(self, error: Exception) -> str:
        assert isinstance(error, ContextOverflowError), error
        return "`ContextOverflowError`"


def doors(url: str) -> list[Door]:
    base = f"{url}/v1"
    return [
        Chat("langchain-openai", "ChatOpenAI(...)", "/v1/chat/completions", ChatOpenAI, base_url=base),
        Chat(
            "langchain-openai",
            "ChatOpenAI(..., use_responses_api=True)",
            "/v1/responses",
            ChatOpenAI,
            base_url=base,
            use_responses_api=True,
        ),
        Chat("langchain-anthropic", "ChatAnthropic(...)", "/v1/messages", ChatAnthropic, base_url=url),
    ]


if __name__ == "__main__":
    steps.run(doors)
