"""An answer as Anthropic's clients hear it: a message, whole or as its own events."""

from collections.abc import Mapping, Sequence
from typing import Any

from octet.v1 import inference_pb2 as wire
from router.http.anthropic_fault import anthropic_envelope
from router.http.blocks import Block, Blocks, TextBlock
from router.http.choice import Choice
from router.http.fault import Fault
from router.http.order import Order
from router.http.server_events import named_event
from router.http.summary import summary

_REASONS = {wire.FINISH_REASON_STOP: "end_turn", wire.FINISH_REASON_LENGTH: "max_tokens"}


class AnthropicTelling:
    """For one request, which has one choice."""

    def __init__(self, order: Order, choices: Sequence[Choice], request_id: str, created: int) -> None:
        """When it came is nothing that is told here."""
        self._order = order
        (self._choice,) = choices
        self._request_id = request_id
        self._blocks = Blocks(keeps_text=False)
        self._open: Block | None = None
        """The block whose end has not been told."""
        self._begun = False

    def whole(self) -> Mapping[str, Any]:
        receipt = _ended(self._choice)
        content = [told for block in self._choice.blocks if (told := _content(block)) is not None]
        stop = _stop(receipt.usage, self._choice.blocks)
        return {**self._message(content), **stop, "usage": _usage(receipt.usage), **self._own(receipt)}

    def told(self, choice: Choice, event: wire.InferEvent) -> bytes:
        if event.HasField("chunk"):
            said = b"".join(self._part(block, text) for block, text in self._blocks.hear(event.chunk))
            return self._start() + said if said else b""
        if event.HasField("receipt"):
            return self._start() + self._stop_block() + self._last(event.receipt)
        return b""

    def ending(self) -> bytes:
        return _event("message_stop")

    def failed(self, fault: Fault) -> bytes:
        """What was said stands; nothing follows."""
        return named_event("error", anthropic_envelope(fault, self._request_id))

    def _start(self) -> bytes:
        """What the prompt had in store is known at the end; how long it is, now."""
        if self._begun:
            return b""
        self._begun = True
        known = self._choice.receipt or self._choice.routed
        num_prompt = 0 if known is None else known.accepted.prompt_tokens
        usage = {"input_tokens": num_prompt, "output_tokens": 0}
        message = {**self._message([]), "stop_reason": None, "stop_sequence": None, "usage": usage}
        return _event("message_start", message=message)

    def _part(self, block: Block, said: str) -> bytes:
        begins = b""
        if self._open is not block:
            begins = self._stop_block() + _event("content_block_start", index=block.index, content_block=_empty(block))
            self._open = block
        return begins + _event("content_block_delta", index=block.index, delta=_delta(block, said)) if said else begins

    def _stop_block(self) -> bytes:
        if self._open is None:
            return b""
        index, self._open = self._open.index, None
        return _event("content_block_stop", index=index)

    def _last(self, receipt: wire.Receipt) -> bytes:
        delta, usage = _stop(receipt.usage, self._blocks), _usage(receipt.usage)
        return _event("message_delta", delta=delta, usage=usage, **self._own(receipt))

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"msg_{self._request_id}",
            "type": "message",
            "role": "assistant",
            "model": self._order.model.answered_by(self._choice.specialist),
            "content": content,
        }

    def _own(self, receipt: wire.Receipt) -> dict[str, Any]:
        return {"octet": {"receipts": [summary(receipt)]}} if self._order.receipt else {}


def _event(name: str, **content: Any) -> bytes:
    return named_event(name, {"type": name, **content})


def _ended(choice: Choice) -> wire.Receipt:
    if choice.receipt is None:
        raise RuntimeError("it has not ended")
    return choice.receipt


def _stop(usage: wire.Usage, blocks: Blocks) -> dict[str, Any]:
    """Every other end is an error, and comes without a receipt here. Raises KeyError."""
    if usage.HasField("stop_string"):
        return {"stop_reason": "stop_sequence", "stop_sequence": usage.stop_string}
    reason = _REASONS[usage.finish_reason]
    return {"stop_reason": "tool_use" if reason == "end_turn" and blocks.has_calls else reason, "stop_sequence": None}


def _usage(usage: wire.Usage) -> dict[str, Any]:
    """What is newly kept for later prompts is not counted apart: all of it is."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cache_hit_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cache_hit_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _empty(block: Block) -> dict[str, Any]:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": ""}
    return {"type": "tool_use", "id": block.id, "name": block.name, "input": {}}


def _delta(block: Block, said: str) -> dict[str, Any]:
    if isinstance(block, TextBlock):
        return {"type": "text_delta", "text": said}
    return {"type": "input_json_delta", "partial_json": said}


def _content(block: Block) -> dict[str, Any] | None:
    """None for a call that was cut off: nobody is to make it."""
    if isinstance(block, TextBlock):
        return {"type": "text", "text": "".join(block.parts)}
    written = block.input
    return None if written is None else {**_empty(block), "input": written}
