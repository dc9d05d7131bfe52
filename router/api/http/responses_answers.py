"""The response object of OpenAI's Responses API, and the events of its stream."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from octet.v1 import inference_pb2 as wire
from router.api.http import completions
from router.api.http.common_fields import ModelField
from router.api.http.completions import AnswerChoice, ApiRequest, ContentBlock
from router.api.http.connection import named_event
from router.api.http.errors import RATE_LIMIT, ApiError
from router.api.http.fields import Count
from router.api.http.openai_responses import token_logprobs
from router.api.http.responses_requests import ResponsesRequest

_Status = Literal["in_progress", "completed", "incomplete"]
_TextFields = dict[str, Any]  # a text part of a message


class AnswerMessage(Struct, tag="message", kw_only=True, forbid_unknown_fields=True):
    id: str
    status: _Status
    content: list[_TextFields]
    role: Literal["assistant"] = "assistant"


class AnswerCall(Struct, tag="function_call", kw_only=True, forbid_unknown_fields=True):
    id: str
    status: _Status
    call_id: str
    name: str
    arguments: str


AnswerItem = AnswerMessage | AnswerCall


class InputTokenDetails(Struct, forbid_unknown_fields=True):
    """The cached tokens. None are reported as written, because caching is automatic."""

    cached_tokens: Count
    cache_write_tokens: Count = 0


class OutputTokenDetails(Struct, forbid_unknown_fields=True):
    reasoning_tokens: Count = 0


class ResponseUsage(Struct, forbid_unknown_fields=True, kw_only=True):
    input_tokens: Count
    input_tokens_details: InputTokenDetails
    output_tokens: Count
    output_tokens_details: OutputTokenDetails
    total_tokens: Count

    @classmethod
    def from_wire(cls, usage: wire.Usage) -> "ResponseUsage":
        return cls(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokenDetails(usage.cache_hit_tokens),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokenDetails(),
            total_tokens=usage.prompt_tokens + usage.completion_tokens,
        )


class IncompleteDetails(Struct, forbid_unknown_fields=True):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseFailure(Struct, forbid_unknown_fields=True):
    code: Literal["server_error", "rate_limit_exceeded"]
    message: str


class ResponseObject(Struct, kw_only=True, forbid_unknown_fields=True):
    """A response. Fields of the request that it repeats are null if the request did not set them."""

    id: str
    created_at: Count
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    completed_at: Count | None
    model: ModelField
    output: list[AnswerItem]
    usage: ResponseUsage | None
    store: bool
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    previous_response_id: str | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    temperature: float | None
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: Count
    top_p: float | None
    user: str | None
    background: Literal[False] = False
    max_tool_calls: None = None
    object: Literal["response"] = "response"
    service_tier: Literal["default"] = "default"
    truncation: Literal["disabled"] = "disabled"
    octet: completions.OctetReceipts | UnsetType = UNSET


@dataclass(slots=True)
class _OutputItem:
    block: ContentBlock
    id: str
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def place(self) -> dict[str, Any]:
        where = {"item_id": self.id, "output_index": self.block.index}
        return {**where, "content_index": 0} if self.block.is_text else where

    def part(self, text: str | None = None) -> _TextFields:
        shown, logprobs = (self.block.content, self.logprobs) if text is None else (text, [])
        return {"type": "output_text", "text": shown, "annotations": [], "logprobs": logprobs}

    def item(self, status: _Status) -> AnswerItem:
        block, is_new = self.block, status == "in_progress"
        if block.is_text:
            return AnswerMessage(id=self.id, status=status, content=[] if is_new else [self.part()])
        arguments = "" if is_new else block.content
        return AnswerCall(id=self.id, status=status, call_id=block.id, name=block.name, arguments=arguments)


class ResponsesWriter:
    """Collects the answer to one request, and writes it whole or as events."""

    def __init__(
        self,
        asked: ResponsesRequest,
        request: ApiRequest,
        choice: AnswerChoice,
        request_id: str,
        now: Callable[[], int],
    ) -> None:
        """`now` returns the seconds since 1970."""
        self._asked = asked
        self._request = request
        self._choice = choice
        self._request_id = request_id
        self._now = now
        self._created = now()
        self._blocks = completions.ContentBlocks()
        self._items: list[_OutputItem] = []
        self._open: _OutputItem | None = None  # the item whose `done` event is not written yet
        self._early: list[dict[str, Any]] = []  # log probabilities before the first text
        self._num_events = 0
        self.is_stored = False

    @property
    def id(self) -> str:
        return f"resp_{self._request_id}"

    def add(self, chunk: wire.Chunk) -> list[tuple[_OutputItem, str, list[dict[str, Any]]]]:
        """Add a chunk. Return its parts: the item, the text or arguments, and the log probabilities of the text."""
        added = []
        logprobs = [] if chunk.tool_calls or not self._request.include_logprobs else token_logprobs(chunk.logprobs)
        self._early += logprobs
        parts = self._blocks.add(chunk)
        if not parts and logprobs and self._items and self._items[-1].block.is_text:
            parts = [(self._items[-1].block, "")]  # tokens that end within a character have no text yet
        for block, text in parts:
            if block.index == len(self._items):
                kind = "msg" if block.is_text else "fc"
                self._items.append(_OutputItem(block, f"{kind}_{self._request_id}_{block.index}"))
            item = self._items[block.index]
            found, self._early = (self._early, []) if block.is_text else ([], self._early)
            item.logprobs += found
            added.append((item, text, found))
        return added

    def complete(self) -> ResponseObject:
        """Return the whole response. Raises KeyError if the answer failed."""
        self._add_empty_message()
        usage = self._choice.final_receipt.usage
        is_cut = self._is_cut
        return self._response(
            status="incomplete" if is_cut else "completed",
            completed_at=self._now(),
            output=self._output(is_cut=is_cut),
            usage=ResponseUsage.from_wire(usage),
            incomplete_details=IncompleteDetails() if is_cut else None,
            octet=completions.summarize_receipts([self._choice]) if self._request.include_receipt else UNSET,
        )

    @property
    def _is_cut(self) -> bool:
        return self._choice.finish_reason == "length"

    def write_chunk(self, chunk: wire.Chunk) -> bytes:
        return b"".join(self._write_part(*part) for part in self.add(chunk))

    def write_last_item(self) -> bytes:
        """Return the events that end the last item. Called when the answer has ended, before it is stored."""
        self._add_empty_message()
        opened = b"" if self._open is not None else self._write_part(self._items[-1], "", [])
        return opened + self._close("incomplete" if self._is_cut else "completed")

    def end(self, response: ResponseObject) -> bytes:
        return self._event(f"response.{response.status}", response=response)

    def fail(self, error: ApiError) -> bytes:
        """Return an error event, which makes OpenAI's clients raise, and the failed response."""
        body = error.body()
        shown = {"code": body.code, "message": body.message, "param": body.param}
        code: Any = "rate_limit_exceeded" if error.kind == RATE_LIMIT else "server_error"  # OpenAI's only ones that fit
        failure = ResponseFailure(code, body.message)
        output = self._output(is_cut=True)
        failed = self._response(status="failed", output=output, error=failure, store=False)
        return self._event("error", **shown, error=body) + self._event("response.failed", response=failed)

    def _add_empty_message(self) -> None:
        """An answer without text and calls is a message with an empty text."""
        if not self._items:
            self._items.append(_OutputItem(ContentBlock(0, is_text=True), f"msg_{self._request_id}_0", self._early))

    def _start(self) -> bytes:
        if self._num_events > 0:
            return b""
        response = self._response(status="in_progress", output=[])
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def _write_part(self, item: _OutputItem, text: str, logprobs: list[dict[str, Any]]) -> bytes:
        opened = self._start()
        if self._open is not item:
            opened += self._close("completed")
            self._open = item
            index, added = item.block.index, item.item("in_progress")
            opened += self._event("response.output_item.added", output_index=index, item=added)
            if item.block.is_text:
                opened += self._event("response.content_part.added", **item.place, part=item.part(""))
        if item.block.is_text and (text or logprobs):
            return opened + self._event("response.output_text.delta", **item.place, delta=text, logprobs=logprobs)
        if text:
            return opened + self._event("response.function_call_arguments.delta", **item.place, delta=text)
        return opened

    def _close(self, status: _Status) -> bytes:
        item, self._open = self._open, None
        if item is None:
            return b""
        if item.block.is_text:
            text, place = item.block.content, item.place
            done = self._event("response.output_text.done", **place, text=text, logprobs=item.logprobs)
            done += self._event("response.content_part.done", **place, part=item.part())
        else:
            named = {"name": item.block.name, "arguments": item.block.content}
            done = self._event("response.function_call_arguments.done", **item.place, **named)
        index, whole = item.block.index, item.item(status)
        return done + self._event("response.output_item.done", output_index=index, item=whole)

    def _event(self, name: str, /, **content: Any) -> bytes:
        number = self._num_events
        self._num_events += 1
        return named_event(name, {"type": name, "sequence_number": number, **content})

    def _output(self, *, is_cut: bool) -> list[AnswerItem]:
        whole = [each.item("completed") for each in self._items]
        return [*whole[:-1], self._items[-1].item("incomplete")] if is_cut and whole else whole

    def _response(self, **given: Any) -> ResponseObject:
        asked = self._asked
        text = {} if asked.text is None else msgspec.to_builtins(asked.text)
        fields: dict[str, Any] = {
            "id": self.id,
            "created_at": self._created,
            "completed_at": None,
            "model": self._request.model.answered_by(self._choice.specialist),
            "usage": None,
            "store": self.is_stored,
            "error": None,
            "incomplete_details": None,
            **{name: getattr(asked, name) for name in _REPEATED},
            "metadata": {key: value for key, value in (asked.metadata or {}).items() if value is not None},
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "reasoning": {"effort": None, "summary": None},
            "text": {"format": text.get("format") or {"type": "text"}, "verbosity": text.get("verbosity")},
            "tool_choice": "auto" if asked.tool_choice is None else asked.tool_choice,
            "tools": [{**msgspec.to_builtins(tool), "strict": bool(tool.strict)} for tool in asked.tools or ()],
            "top_logprobs": asked.top_logprobs or 0,
        }
        return ResponseObject(**{**fields, **given})


_REPEATED = (
    *("previous_response_id", "instructions", "max_output_tokens", "prompt_cache_key", "safety_identifier"),
    *("temperature", "top_p", "user"),
)
