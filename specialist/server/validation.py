"""Limits of every request field, and validation of all values that callers send."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from octet.limits import MAX_DRAFT_WINDOW, Range, shorten
from octet.rpc.checks import FieldChecks, ToolChecks, check_unique, message_texts
from octet.rpc.refusal import Refusal, invalid_field, prompt_too_large, prompt_too_long
from octet.v1 import specialist_pb2 as wire
from specialist.adapters.catalog import MAX_STACK
from specialist.scheduling.sequence import Sampling
from specialist.server.served_request import ServedRequest
from specialist.server.settings import MIN_CONTEXT
from specialist.text.prompt import (
    ChatPrompt,
    ChatTurn,
    MessageToolCall,
    OfferedTool,
    Prompt,
    Structure,
    StructureKind,
    TokenPrompt,
    ToolMode,
    ToolOffer,
)

_INT64 = 2**63
REQUEST_BYTES = 4 << 20
_BYTES_PER_TOKEN = 16  # maximum bytes of a prompt for each token of the context, checked before it is tokenised
_DEFAULT_MAX_TOKENS = 256
_DAY_MS = 24 * 3600 * 1000
_SCHEMA_BYTES = 64 << 10
_MAX_TOOLS = 128


@dataclass(frozen=True, slots=True)
class GenerateLimits:
    context: int  # tokens, prompt and answer together; limited by the model and by the pool
    vocab_size: int
    can_embed: bool = False
    counts_only: bool = False  # whether prompts are only counted, so that their tokens need not fit into the context

    @property
    def prompt_tokens(self) -> int:
        """The maximum number of prompt tokens, which leaves room for one token of the answer."""
        return self.context - 1

    @property
    def prompt_bytes(self) -> int:
        return REQUEST_BYTES if self.counts_only else min(self.context * _BYTES_PER_TOKEN, REQUEST_BYTES)

    def ranges(self) -> dict[str, Range]:
        """Return the allowed values of each number, by the field's name on the wire."""
        return {
            "sampling.temperature": Range(1e-4, 100, or_zero=True),
            "sampling.top_k": Range(0, self.vocab_size),
            "sampling.top_p": Range(0, 1, open=True),
            "sampling.min_p": Range(0, 1),
            "sampling.typical_p": Range(0, 1, open=True),
            "sampling.repetition_penalty": Range(0.01, 10),
            "sampling.presence_penalty": Range(-10, 10),
            "sampling.frequency_penalty": Range(-10, 10),
            "sampling.num_logprobs": Range(0, 20),
            "sampling.logit_bias.token": Range(0, self.vocab_size - 1),
            "sampling.logit_bias.bias": Range(-100, 100),
            "tokens.ids": Range(0, self.vocab_size - 1),
            "seed": Range(-_INT64, _INT64 - 1),
            "max_tokens": Range(1, 1 << 20),
            "min_tokens": Range(0, self.context),
            "priority": Range(-1000, 1000),
            "timeout_ms": Range(1, _DAY_MS),
            "first_token_timeout_ms": Range(1, _DAY_MS),
            "wait_ms": Range(0, _DAY_MS),
            "context_size": Range(MIN_CONTEXT, self.context),
            "draft_window": Range(0, MAX_DRAFT_WINDOW),
            "min_interval_ms": Range(0, 60_000),
            "heartbeat_ms": Range(10, 60_000),  # limits the work that many watchers can cause
        }

    def sizes(self) -> dict[str, int]:
        """Return the maximum number of bytes of each string, by the field's name on the wire."""
        return {
            "request_id": 128,
            "text": self.prompt_bytes,
            "chat.messages": self.prompt_bytes,
            "chat.messages.role": 32,
            "chat.messages.tool_calls.id": 128,
            "chat.messages.tool_calls.arguments": _SCHEMA_BYTES,
            "chat.tools": 256 << 10,  # of all tools together
            "chat.tools.description": 8 << 10,
            "chat.tools.parameters": _SCHEMA_BYTES,
            "stop": 256,
            "adapters": 64,
            "name": 64,
            "path": 4096,
            "tenant_salt": 64,
            "session_key": 64,
            "place_for": 64,
            "place": 64,
            "structure.json_schema": _SCHEMA_BYTES,
            "structure.regex": 8 << 10,
            "structure.choice": 64 << 10,  # of all choices together
            "structure.choice.choices": 1024,
        }

    def counts(self) -> dict[str, int]:
        """Return the maximum number of elements of each list, by the field's name on the wire."""
        return {
            "tokens.ids": self.prompt_tokens,
            "chat.messages": 1024,
            "chat.messages.tool_calls": _MAX_TOOLS,
            "chat.tools": _MAX_TOOLS,
            "adapters": MAX_STACK,
            "stop": 16,
            "sampling.logit_bias": 1024,
            "structure.choice.choices": 1024,
        }

    def describe(self) -> Iterator[tuple[str, str]]:
        yield "request", f"at most {REQUEST_BYTES:,} bytes"
        yield "prompt", f"at most {self.prompt_tokens:,} tokens"
        yield "embed", "true or false" if self.can_embed else "false"
        for field, most in self.sizes().items():
            yield field, f"at most {most:,} bytes"
        for field, most in self.counts().items():
            yield field, f"at most {most:,} items"
        for field, allowed in self.ranges().items():
            yield field, str(allowed)


_SAMPLING_NUMBERS: tuple[Any, ...] = (
    *("temperature", "top_k", "top_p", "min_p", "typical_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "num_logprobs"),
)
_MODES: dict[int, ToolMode] = {
    wire.ToolChoice.AUTO: "auto",
    wire.ToolChoice.NONE: "none",
    wire.ToolChoice.REQUIRED: "required",
}

_DIGEST = re.compile("[0-9a-f]{64}")


class GenerateValidator(FieldChecks):
    """Validates requests. Every method raises a Refusal with the name, the limit and the value of an invalid field."""

    def __init__(self, limits: GenerateLimits) -> None:
        super().__init__(limits.ranges(), limits.sizes(), limits.counts())
        self.limits = limits
        self._tools = ToolChecks(self, "chat.")

    def validate(self, message: wire.GenerateRequest) -> ServedRequest:
        number = partial(self._optional, message)
        max_tokens = int(number("max_tokens", _DEFAULT_MAX_TOKENS))
        min_tokens = int(number("min_tokens", 0))
        if min_tokens > max_tokens:
            raise invalid_field("min_tokens", f"at most max_tokens ({max_tokens})", str(min_tokens))
        self.size("tenant_salt", message.tenant_salt)
        self.size("session_key", message.session_key)
        prompt = self._prompt(message)
        if message.embed:
            self._check_embed(message, prompt)
        return ServedRequest(
            caller_id=self.identifier("request_id", message.request_id),
            prompt=prompt,
            adapters=self.names("adapters", message.adapters),
            sampling=self._sampling(message.sampling, min_tokens),
            seed=int(number("seed", 0)) if message.HasField("seed") else None,
            max_tokens=1 if message.embed else max_tokens,
            context=int(number("context_size", self.limits.context)),
            draft_window=int(number("draft_window", MAX_DRAFT_WINDOW)),
            stop=self.stops(message.stop),
            ignore_eos=message.ignore_eos,
            priority=int(number("priority", 0)),
            timeout=self.seconds(message, "timeout_ms"),
            first_timeout=self.seconds(message, "first_token_timeout_ms"),
            tenant_salt=message.tenant_salt,
            session_key=message.session_key,
            shadow=message.shadow,
            structure=self._structure(message),
            embed=message.embed,
            place_for=self.identifier("place_for", message.place_for),
            place=self.identifier("place", message.place),
            waits=self.seconds(message, "wait_ms"),
        )

    def _check_embed(self, message: wire.GenerateRequest, prompt: Prompt) -> None:
        if not self.limits.can_embed:
            raise invalid_field("embed", "false, because this engine has no hidden states", "true")
        if isinstance(prompt, ChatPrompt):
            raise invalid_field("prompt", "text or tokens when embed is set", "chat")
        for field in ("structure", "sampling"):
            if message.HasField(field):
                raise invalid_field(field, "unset when embed is set", "both")

    def seconds(self, message: wire.GenerateRequest | wire.WatchLoadRequest, field: str) -> float | None:
        """Return a field in milliseconds as seconds; None if it is not set."""
        return self.in_range(field, getattr(message, field)) / 1000 if message.HasField(field) else None

    def check_prompt_length(self, num_tokens: int) -> None:
        if num_tokens > self.limits.prompt_tokens:
            raise prompt_too_long(num_tokens, self.limits.prompt_tokens)
        if num_tokens == 0:
            raise invalid_field("prompt", "at least one token", "none")

    def check_prompt_fits(self, num_tokens: int, context: int) -> None:
        """Raises Refusal if the prompt is empty or leaves no room for a token of the answer."""
        self.check_prompt_length(num_tokens)
        if num_tokens >= context:
            room = f"a context_size of {context} leaves room for {context - 1} prompt tokens"
            message = f"the prompt is {num_tokens} tokens long; {room}"
            limit, reason = f"more than the prompt's {num_tokens} tokens", wire.ERROR_REASON_PROMPT_TOO_LONG
            raise Refusal(reason, message, field="context_size", limit=limit, value=str(context))

    def adapter_path(self, path: str) -> str:
        self.text("path", path)
        if not path or "\0" in path:
            raise invalid_field("path", "a directory below the adapter root", shorten(path))
        return path

    def adapter_digest(self, digest: str) -> str:
        if digest and _DIGEST.fullmatch(digest) is None:
            raise invalid_field("digest", "empty or a sha256 of 64 lowercase hex digits", shorten(digest))
        return digest

    def _prompt(self, message: wire.GenerateRequest) -> Prompt:
        which = message.WhichOneof("prompt")
        if which == "text":
            self.size("text", message.text.encode())
            if not message.text:
                raise invalid_field("text", "non-empty", "''")
            return message.text
        if which == "tokens":
            return self._tokens(message.tokens.ids)
        if which == "chat":
            return self._chat(message.chat)
        raise invalid_field("prompt", "one of text, tokens and chat", "none of them")

    def _tokens(self, ids: Sequence[int]) -> TokenPrompt:
        if not ids:
            raise invalid_field("tokens.ids", "non-empty", "an empty list")
        self.check_prompt_length(len(ids))
        allowed = self._ranges["tokens.ids"]
        if min(ids) < allowed.least or max(ids) > allowed.most:
            worst = next(token for token in ids if token not in allowed)
            raise invalid_field("tokens.ids", str(allowed), str(worst))
        return TokenPrompt(tuple(ids))

    def _chat(self, chat: wire.Chat) -> ChatPrompt:
        self._tools.tools(chat.tools)
        if chat.HasField("tool_choice"):
            self._tools.choice(chat.tool_choice, chat.tools)
        tools = tuple(OfferedTool(tool.name, tool.description, tool.parameters, tool.strict) for tool in chat.tools)
        choice = chat.tool_choice
        offer = ToolOffer(tools, _MODES[choice.mode], choice.name, choice.one_at_most)
        return ChatPrompt(self._turns(chat.messages), offer)

    def _turns(self, messages: Sequence[wire.Message]) -> tuple[ChatTurn, ...]:
        self.count("chat.messages", messages)
        if not messages:
            raise invalid_field("chat.messages", "non-empty", "an empty list")
        most = self._sizes["chat.messages"]
        self._tools.conversation(messages)
        size = sum(len(text.encode()) for turn in messages for text in message_texts(turn))
        if size > most:
            raise prompt_too_large("chat.messages", most, f"{size:,} bytes")
        for turn in messages:
            self.role("chat.messages.role", turn.role)
        return tuple(_chat_turn(turn) for turn in messages)

    def _structure(self, message: wire.GenerateRequest) -> Structure | None:
        if not message.HasField("structure"):
            return None
        asked = message.structure
        self.structure(asked)
        kind: StructureKind = asked.WhichOneof("kind")
        return Structure(kind, asked.json_schema or asked.regex, tuple(asked.choice.choices))

    def _sampling(self, message: wire.Sampling, min_tokens: int) -> Sampling:
        self.count("sampling.logit_bias", message.logit_bias)
        given: dict[str, Any] = {
            name: self.in_range(f"sampling.{name}", getattr(message, name))
            for name in _SAMPLING_NUMBERS
            if message.HasField(name)
        }
        return Sampling(**given, logit_bias=self._biases(message.logit_bias), min_tokens=min_tokens)

    def _biases(self, biases: Sequence[wire.LogitBias]) -> tuple[tuple[int, float], ...]:
        check = self.in_range
        checked = tuple(
            (int(check("sampling.logit_bias.token", each.token)), check("sampling.logit_bias.bias", each.bias))
            for each in biases
        )
        check_unique("sampling.logit_bias", "tokens", [token for token, _ in checked])
        return checked

    def _optional(self, message: wire.GenerateRequest | wire.WatchLoadRequest, field: str, default: float) -> float:
        return self.in_range(field, getattr(message, field)) if message.HasField(field) else default


def _chat_turn(turn: wire.Message) -> ChatTurn:
    calls = tuple(MessageToolCall(call.id, call.name, call.arguments) for call in turn.tool_calls)
    return ChatTurn(turn.role, turn.content, calls, turn.tool_call_id)
