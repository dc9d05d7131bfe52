"""An answer in OpenAI's shapes: whole objects and the chunks of a stream."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from octet.v1 import inference_pb2 as wire
from router.http.choice import Choice
from router.http.logprobs import finite, shown, token_told
from router.http.openai_calls import delta_of_calls, message_of
from router.http.order import Order
from router.http.summary import summary

_DIGITS = 12


class Objects:
    """For one request."""

    def __init__(self, order: Order, request_id: str, created: int) -> None:
        """`created` is seconds since 1970."""
        self._order = order
        self._id = f"{'chatcmpl' if order.is_chat else 'cmpl'}-{request_id}"
        self._created = created

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        kind = "chat.completion" if self._order.is_chat else "text_completion"
        found = self._head(kind, choices[0], [self._choice(each) for each in choices])
        found["usage"] = self._usage(choices)
        return found | self._own(choices)

    def piece(self, choice: Choice, chunk: wire.Chunk, *, is_first: bool) -> dict[str, Any]:
        """What is new of one choice."""
        logprobs = self._logprobs(chunk.logprobs) if self._order.logprobs else None
        made = self._chunk(choice, chunk.text, logprobs, None, is_first=is_first)
        if chunk.tool_calls:
            made["choices"][0]["delta"] = delta_of_calls(chunk, is_first=is_first)
        return made

    def last(self, choice: Choice) -> dict[str, Any]:
        """Of one choice: nothing new, and why it ended."""
        return self._chunk(choice, None, None, choice.finish_reason, is_first=False)

    def usage(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The chunk without choices, for those who asked for it."""
        found = self._head(self._chunk_kind, choices[0], [])
        found["usage"] = self._usage(choices)
        return found

    def own(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """For the last chunk."""
        return self._own(choices)

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self._order.is_chat else "text_completion"

    def _head(self, kind: str, choice: Choice, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._order.model.answered_by(choice.specialist),
            "system_fingerprint": f"fp_{choice.revision[:_DIGITS]}" if choice.revision else None,
            "choices": choices,
        }

    def _choice(self, choice: Choice) -> dict[str, Any]:
        text = "".join(choice.text)
        logprobs = self._logprobs(choice.logprobs) if self._order.logprobs else None
        said: dict[str, Any] = {"text": text}
        if self._order.is_chat:
            said = {"message": message_of(text, choice.blocks.calls)}
        return {"index": choice.index, **said, "logprobs": logprobs, "finish_reason": choice.finish_reason}

    def _chunk(
        self, choice: Choice, text: str | None, logprobs: Any, reason: str | None, *, is_first: bool
    ) -> dict[str, Any]:
        said: dict[str, Any] = {"text": text or ""}
        if self._order.is_chat:
            role = {"role": "assistant"} if is_first else {}
            said = {"delta": role | ({} if text is None else {"content": text})}
        told = {"index": choice.index, **said, "logprobs": logprobs, "finish_reason": reason}
        found = self._head(self._chunk_kind, choice, [told])
        return {**found, "usage": None} if self._order.include_usage else found

    def _usage(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """A prompt counts once, however many choices it has."""
        used = [each.receipt.usage for each in choices if each.receipt is not None]
        prompts = used[:: self._order.num_each]
        num_prompt = sum(each.prompt_tokens for each in prompts)
        num_answer = sum(each.completion_tokens for each in used)
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_answer,
            "total_tokens": num_prompt + num_answer,
            "prompt_tokens_details": {"cached_tokens": sum(each.cache_hit_tokens for each in prompts)},
        }

    def _own(self, choices: Sequence[Choice]) -> dict[str, Any]:
        if not self._order.receipt:
            return {}
        return {"octet": {"receipts": [summary(each.receipt) for each in choices if each.receipt is not None]}}

    def _logprobs(self, logprobs: Iterable[wire.TokenLogprobs]) -> dict[str, Any]:
        return _chat_logprobs(logprobs) if self._order.is_chat else _completion_logprobs(logprobs)


def _chat_logprobs(logprobs: Iterable[wire.TokenLogprobs]) -> dict[str, Any]:
    return {
        "content": [
            {**_token(each.piece, each.chosen), "top_logprobs": [_token(top.piece, top.logprob) for top in each.top]}
            for each in logprobs
        ],
        "refusal": None,
    }


def _token(piece: bytes, logprob: float) -> dict[str, Any]:
    return {**token_told(piece, logprob), "bytes": list(piece)}


def _completion_logprobs(logprobs: Iterable[wire.TokenLogprobs]) -> dict[str, Any]:
    """Without offsets: a token may be a part of a character, and has no place in the text then."""
    kept = list(logprobs)
    return {
        "tokens": [shown(each.piece) for each in kept],
        "token_logprobs": [finite(each.chosen) for each in kept],
        "top_logprobs": [_by_token(each) for each in kept],
        "text_offset": None,
    }


def _by_token(logprobs: wire.TokenLogprobs) -> Mapping[str, float]:
    """The likelier of two that look the same."""
    return {shown(top.piece): finite(top.logprob) for top in reversed(logprobs.top)}
