"""An answer as OpenAI's clients hear it: whole, or in chunks to `[DONE]`."""

from collections.abc import Mapping, Sequence
from typing import Any

from octet.v1 import inference_pb2 as wire
from router.http.choice import Choice
from router.http.fault import Fault
from router.http.openai_objects import Objects
from router.http.order import Order
from router.http.server_events import Form, data_event

_DONE = b"data: [DONE]\n\n"


class OpenAITelling:
    """For one request."""

    def __init__(self, order: Order, choices: Sequence[Choice], request_id: str, created: int) -> None:
        """`created` is seconds since 1970."""
        self._order = order
        self._choices = choices
        self._objects = Objects(order, request_id, created)
        self._begun: set[int] = set()
        self._forms: dict[int, Form] = {}
        """Of pieces behind the first that are text and nothing else, by choice."""

    def whole(self) -> Mapping[str, Any]:
        return self._objects.whole(self._choices)

    def told(self, choice: Choice, event: wire.InferEvent) -> bytes:
        if event.HasField("chunk"):
            return self._chunk(choice, event.chunk)
        if event.HasField("receipt"):
            nothing = b"" if choice.index in self._begun else data_event(self._piece(choice, wire.Chunk()))
            return nothing + data_event(self._last(choice))
        return b""

    def ending(self) -> bytes:
        if not self._order.include_usage:
            return _DONE
        return data_event({**self._objects.usage(self._choices), **self._objects.own(self._choices)}) + _DONE

    def failed(self, fault: Fault) -> bytes:
        """What was said stands, and nobody takes it for the whole: there is no `[DONE]`."""
        return data_event(fault.envelope())

    def _chunk(self, choice: Choice, chunk: wire.Chunk) -> bytes:
        text: str = chunk.text
        if choice.index in self._begun and text and not self._order.logprobs and not chunk.tool_calls:
            return self._form(choice).event(text)
        says = text or chunk.tool_calls or (self._order.logprobs and chunk.logprobs)
        return data_event(self._piece(choice, chunk)) if says else b""

    def _form(self, choice: Choice) -> Form:
        form = self._forms.get(choice.index)
        if form is None:
            form = self._forms[choice.index] = Form(lambda text: data_event(self._text(choice, text)))
        return form

    def _text(self, choice: Choice, text: str) -> Mapping[str, Any]:
        return self._objects.piece(choice, wire.Chunk(text=text), is_first=False)

    def _piece(self, choice: Choice, chunk: wire.Chunk) -> Mapping[str, Any]:
        is_first = choice.index not in self._begun
        self._begun.add(choice.index)
        return self._objects.piece(choice, chunk, is_first=is_first)

    def _last(self, choice: Choice) -> Mapping[str, Any]:
        told = self._objects.last(choice)
        is_last = all(each.receipt is not None for each in self._choices) and not self._order.include_usage
        return {**told, **self._objects.own(self._choices)} if is_last else told
