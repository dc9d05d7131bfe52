"""OpenAI response objects and stream chunks."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from octet.v1 import inference_pb2 as wire
from router.api.http import common_fields, completions
from router.api.http.completions import AnswerChoice, ApiRequest, finite_logprob, token_text
from router.api.http.connection import EventTemplate, data_event
from router.api.http.errors import ApiError
from router.api.http.fields import Count
from router.api.http.openai_requests import MAX_CHOICES, ChatFunctionCall, ChatToolCall

_DONE = b"data: [DONE]\n\n"
_FINGERPRINT_DIGITS = 12
_NUM_CHOICES = Meta(min_length=1, max_length=MAX_CHOICES)


class CachedTokens(Struct, forbid_unknown_fields=True):
    cached_tokens: Count


class OpenAIUsage(Struct, forbid_unknown_fields=True):
    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: CachedTokens


class OpenAIResponse(Struct, forbid_unknown_fields=True, kw_only=True):
    id: str
    created: Count
    model: common_fields.ModelField
    system_fingerprint: str | None
    usage: OpenAIUsage
    octet: completions.OctetReceipts | UnsetType = UNSET


class ChatLogprobs(Struct, forbid_unknown_fields=True):
    content: list[dict[str, Any]]
    refusal: None = None


class ChatAnswer(Struct, forbid_unknown_fields=True):
    content: str | None
    tool_calls: list[ChatToolCall] | UnsetType = UNSET
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(Struct, forbid_unknown_fields=True):
    index: Count
    message: ChatAnswer
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(OpenAIResponse, kw_only=True):
    object: Literal["chat.completion"] = "chat.completion"
    choices: Annotated[list[ChatChoice], _NUM_CHOICES]


class CompletionLogprobs(Struct, forbid_unknown_fields=True):
    """Log probabilities by token. There are no text offsets, because a token may be part of a character."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: None = None


class CompletionChoice(Struct, forbid_unknown_fields=True):
    index: Count
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]


class TextCompletion(OpenAIResponse, kw_only=True):
    object: Literal["text_completion"] = "text_completion"
    choices: Annotated[list[CompletionChoice], _NUM_CHOICES]


class ModelObject(Struct, forbid_unknown_fields=True):
    id: common_fields.ModelField
    created: Count
    object: Literal["model"] = "model"
    owned_by: str = "octet"


class ModelList(Struct, forbid_unknown_fields=True):
    data: Annotated[list[ModelObject], Meta(min_length=1)]
    object: Literal["list"] = "list"


class OpenAIWriter:
    def __init__(self, request: ApiRequest, choices: Sequence[AnswerChoice], request_id: str, created: int) -> None:
        self._request = request
        self._choices = choices
        self._id = f"{'chatcmpl' if request.is_chat else 'cmpl'}-{request_id}"
        self._created = created
        self._started: set[int] = set()
        self._templates: dict[int, EventTemplate] = {}  # by choice; for chunks that hold only text, except the first

    def complete(self) -> ChatCompletion | TextCompletion:
        head: dict[str, Any] = {**self._head(self._choices[0]), "usage": self._usage(), **self._receipts_field()}
        if self._request.is_chat:
            return ChatCompletion(**head, choices=[self._chat_choice(each) for each in self._choices])
        return TextCompletion(**head, choices=[self._completion_choice(each) for each in self._choices])

    def write_event(self, choice: AnswerChoice, event: wire.InferEvent) -> bytes:
        if event.HasField("chunk"):
            return self._write_chunk(choice, event.chunk)
        if not event.HasField("receipt"):
            return b""
        first = b"" if choice.index in self._started else data_event(self._next_chunk(choice, wire.Chunk()))
        last = self._chunk(choice, {} if self._request.is_chat else {"text": ""}, None, choice.finish_reason)
        is_last = not self._request.include_usage and all(each.has_ended for each in self._choices)
        return first + data_event({**last, **self._receipts_field()} if is_last else last)

    def end(self) -> bytes:
        if not self._request.include_usage:
            return _DONE
        last = {**self._head(self._choices[0]), "object": self._chunk_kind, "choices": [], "usage": self._usage()}
        return data_event({**last, **self._receipts_field()}) + _DONE

    def fail(self, error: ApiError) -> bytes:
        """Return an error event without `[DONE]`, so that the answer does not look complete."""
        return data_event(error.envelope())

    def text_chunk(self, choice: AnswerChoice, chunk: wire.Chunk, *, is_first: bool) -> dict[str, Any]:
        logprobs = self._logprobs(chunk.logprobs)
        if not self._request.is_chat:
            return self._chunk(choice, {"text": chunk.text}, logprobs, None)
        delta: dict[str, Any] = {"role": "assistant"} if is_first else {}
        if chunk.tool_calls:
            if chunk.text or is_first:
                delta["content"] = chunk.text or None
            delta["tool_calls"] = [_tool_call_part(part) for part in chunk.tool_calls]
        else:
            delta["content"] = chunk.text
        return self._chunk(choice, delta, logprobs, None)

    def _write_chunk(self, choice: AnswerChoice, chunk: wire.Chunk) -> bytes:
        text: str = chunk.text
        include_logprobs = self._request.include_logprobs
        if choice.index in self._started and text and not include_logprobs and not chunk.tool_calls:
            template = self._templates.get(choice.index)
            if template is None:
                template = self._templates[choice.index] = EventTemplate(
                    lambda text: data_event(self.text_chunk(choice, wire.Chunk(text=text), is_first=False))
                )
            return template.event(text)
        has_content = text or chunk.tool_calls or (include_logprobs and chunk.logprobs)
        return data_event(self._next_chunk(choice, chunk)) if has_content else b""

    def _next_chunk(self, choice: AnswerChoice, chunk: wire.Chunk) -> dict[str, Any]:
        is_first = choice.index not in self._started
        self._started.add(choice.index)
        return self.text_chunk(choice, chunk, is_first=is_first)

    def _chunk(
        self, choice: AnswerChoice, content: dict[str, Any], logprobs: Any, reason: str | None
    ) -> dict[str, Any]:
        if self._request.is_chat:
            content = {"delta": content}
        shown = {"index": choice.index, **content, "logprobs": logprobs, "finish_reason": reason}
        found = {**self._head(choice), "object": self._chunk_kind, "choices": [shown]}
        return {**found, "usage": None} if self._request.include_usage else found

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self._request.is_chat else "text_completion"

    def _head(self, choice: AnswerChoice) -> dict[str, Any]:
        revision = "" if choice.receipt is None else choice.receipt.lane.revision
        return {
            "id": self._id,
            "created": self._created,
            "model": self._request.model.answered_by(choice.specialist),
            "system_fingerprint": f"fp_{revision[:_FINGERPRINT_DIGITS]}" if revision else None,
        }

    def _chat_choice(self, choice: AnswerChoice) -> ChatChoice:
        text, calls = choice.text, choice.blocks.calls
        message = ChatAnswer(content=text or (None if calls else ""))
        if calls:
            made = [(call.id, ChatFunctionCall(call.name, call.arguments)) for call in calls]
            message.tool_calls = [ChatToolCall("function", id_, function) for id_, function in made]
        reason: Any = choice.finish_reason
        return ChatChoice(choice.index, message, self._logprobs(choice.logprobs), reason)

    def _completion_choice(self, choice: AnswerChoice) -> CompletionChoice:
        reason: Any = choice.finish_reason
        return CompletionChoice(choice.index, choice.text, self._logprobs(choice.logprobs), reason)

    def _usage(self) -> OpenAIUsage:
        """Return the total usage of all choices. A prompt counts once, however many choices it has."""
        used = [each.final_receipt.usage for each in self._choices]
        prompts = used[:: self._request.choices_per_prompt]
        num_prompt = sum(each.prompt_tokens for each in prompts)
        num_answer = sum(each.completion_tokens for each in used)
        cached = CachedTokens(sum(each.cache_hit_tokens for each in prompts))
        return OpenAIUsage(num_prompt, num_answer, num_prompt + num_answer, cached)

    def _receipts_field(self) -> dict[str, completions.OctetReceipts]:
        return {"octet": completions.summarize_receipts(self._choices)} if self._request.include_receipt else {}

    def _logprobs(self, logprobs: Iterable[wire.TokenLogprobs]) -> Any:
        """Return ChatLogprobs or CompletionLogprobs; None if the request asks for no log probabilities."""
        if not self._request.include_logprobs:
            return None
        kept = list(logprobs)
        if self._request.is_chat:
            return ChatLogprobs(token_logprobs(kept))
        return CompletionLogprobs(
            tokens=[token_text(each.piece) for each in kept],
            token_logprobs=[finite_logprob(each.chosen) for each in kept],
            # of two tokens with the same text, the likelier one is kept
            top_logprobs=[
                {token_text(top.piece): finite_logprob(top.logprob) for top in reversed(each.top)} for each in kept
            ],
        )


def _tool_call_part(part: wire.ToolCallPart) -> dict[str, Any]:
    if not part.id:
        return {"index": part.index, "function": {"arguments": part.arguments}}
    function = {"name": part.name, "arguments": part.arguments}
    return {"index": part.index, "id": part.id, "type": "function", "function": function}


def token_logprobs(logprobs: Iterable[wire.TokenLogprobs]) -> list[dict[str, Any]]:
    return [
        {
            **_chat_logprob(each.piece, each.chosen),
            "top_logprobs": [_chat_logprob(top.piece, top.logprob) for top in each.top],
        }
        for each in logprobs
    ]


def _chat_logprob(piece: bytes, logprob: float) -> dict[str, Any]:
    return {"token": token_text(piece), "logprob": finite_logprob(logprob), "bytes": list(piece)}
