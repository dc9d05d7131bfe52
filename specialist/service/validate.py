"""The one place where values from outside are checked. Whatever leaves it is in range."""

import re
from collections.abc import Sequence
from functools import partial
from math import inf

import grpc

from octet.rpc.checks import Checks
from octet.rpc.refusal import Refusal, invalid, prompt_too_long, shorten
from octet.rpc.tool_checks import ToolChecks, texts_of
from octet.v1 import specialist_pb2 as wire
from specialist.guide.structure import Structure
from specialist.sampling import Sampling
from specialist.service.ask import Ask, ChatPrompt, Prompt, TokenPrompt
from specialist.service.limits import Limits
from specialist.text.message import Message
from specialist.tools.tool import Mode, Offer, Tool, ToolCall

_MODES: dict[int, Mode] = {
    wire.ToolChoice.AUTO: "auto",
    wire.ToolChoice.NONE: "none",
    wire.ToolChoice.REQUIRED: "required",
}

_DIGEST = re.compile("[0-9a-f]{64}")


class Validator(Checks):
    """Every method raises Refusal, which names the field, its limit and the value."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits.ranges(), limits.sizes(), limits.counts())
        self.limits = limits
        self._tools = ToolChecks(self, "chat.")

    def generate(self, message: wire.GenerateRequest) -> Ask:
        number = partial(self._optional, message, "")
        max_tokens = int(number("max_tokens", self.limits.default_max_tokens))
        min_tokens = int(number("min_tokens", 0))
        if min_tokens > max_tokens:
            raise invalid("min_tokens", f"at most max_tokens ({max_tokens})", str(min_tokens))
        self.size("tenant_salt", message.tenant_salt)
        self.size("session_key", message.session_key)
        prompt = self._prompt(message)
        if message.HasField("structure") and isinstance(prompt, ChatPrompt) and prompt.offer.is_open:
            raise invalid("structure", "unset where tools may be called", "both")
        return Ask(
            request_id=self.identifier("request_id", message.request_id),
            prompt=prompt,
            adapters=self.names("adapters", message.adapters),
            sampling=self._sampling(message.sampling, min_tokens),
            seed=int(number("seed", 0)) if message.HasField("seed") else None,
            max_tokens=max_tokens,
            context=int(number("context_size", self.limits.context)),
            stop=self.stops(message.stop),
            ignore_eos=message.ignore_eos,
            priority=int(number("priority", 0)),
            timeout=self._seconds(message, "timeout_ms"),
            first_timeout=self._seconds(message, "first_token_timeout_ms"),
            tenant_salt=message.tenant_salt,
            session_key=message.session_key,
            shadow=message.shadow,
            structure=self._structure(message),
        )

    def _seconds(self, message: wire.GenerateRequest, field: str) -> float | None:
        return self._optional(message, "", field, 0) / 1000 if message.HasField(field) else None

    def prompt_length(self, num_tokens: int) -> None:
        if num_tokens > self.limits.prompt_tokens:
            raise prompt_too_long(num_tokens, self.limits.prompt_tokens)
        if num_tokens == 0:
            raise invalid("prompt", "at least one token", "none")

    def prompt_within(self, num_tokens: int, context: int) -> None:
        """Room for one token of an answer is left."""
        self.prompt_length(num_tokens)
        if num_tokens >= context:
            raise _beyond_context_size(num_tokens, context)

    def adapter_name(self, name: str) -> str:
        return self.name("name", name)

    def adapter_path(self, path: str) -> str:
        self.text("path", path)
        if not path or "\0" in path:
            raise invalid("path", "a directory below the adapter root", shorten(path))
        return path

    def adapter_digest(self, digest: str) -> str:
        if digest and _DIGEST.fullmatch(digest) is None:
            raise invalid("digest", "a sha256 of 64 hex digits, or empty", shorten(digest))
        return digest

    def watch_interval(self, message: wire.WatchLoadRequest, default: float) -> float:
        """Seconds."""
        return self._optional(message, "", "min_interval_ms", default * 1000) / 1000

    def watch_heartbeat(self, message: wire.WatchLoadRequest) -> float:
        """Seconds; infinite where none is asked for."""
        return self._optional(message, "", "heartbeat_ms", inf) / 1000

    def _prompt(self, message: wire.GenerateRequest) -> Prompt:
        which = message.WhichOneof("prompt")
        if which == "text":
            self.size("text", message.text.encode())
            if not message.text:
                raise invalid("text", "not empty", "''")
            return message.text
        if which == "tokens":
            return self._tokens(message.tokens.ids)
        if which == "chat":
            return self._chat(message.chat)
        raise invalid("prompt", "one of text, tokens and chat", "none of them")

    def _tokens(self, ids: Sequence[int]) -> TokenPrompt:
        if not ids:
            raise invalid("tokens.ids", "not empty", "none")
        self.prompt_length(len(ids))
        allowed = self._ranges["tokens.ids"]
        if min(ids) < allowed.least or max(ids) > allowed.most:
            worst = next(token for token in ids if token not in allowed)
            raise invalid("tokens.ids", str(allowed), str(worst))
        return TokenPrompt(tuple(ids))

    def _chat(self, chat: wire.Chat) -> ChatPrompt:
        self._tools.tools(chat.tools)
        if chat.HasField("tool_choice"):
            self._tools.choice(chat.tool_choice, chat.tools)
        tools = tuple(Tool(tool.name, tool.description, tool.parameters, tool.strict) for tool in chat.tools)
        choice = chat.tool_choice
        offer = Offer(tools, _MODES[choice.mode], choice.name, choice.one_at_most)
        return ChatPrompt(self._turns(chat.messages), offer)

    def _turns(self, messages: Sequence[wire.Message]) -> tuple[Message, ...]:
        self.count("chat.messages", messages)
        if not messages:
            raise invalid("chat.messages", "not empty", "none")
        most = self._sizes["chat.messages"]
        self._tools.conversation(messages)
        size = sum(len(text.encode()) for turn in messages for text in texts_of(turn))
        if size > most:
            raise invalid("chat.messages", f"at most {most:,} bytes of content in all", f"{size:,} bytes")
        for turn in messages:
            self.role("chat.messages.role", turn.role)
        return tuple(_message(turn) for turn in messages)

    def _structure(self, message: wire.GenerateRequest) -> Structure | None:
        if not message.HasField("structure"):
            return None
        asked = message.structure
        self.structure(asked)
        match asked.WhichOneof("kind"):
            case "json_schema":
                return Structure("json_schema", asked.json_schema)
            case "regex":
                return Structure("regex", asked.regex)
            case "choice":
                return Structure("choice", choices=tuple(asked.choice.choices))
            case _:
                return Structure("json_object")

    def _sampling(self, message: wire.Sampling, min_tokens: int) -> Sampling:
        number = partial(self._optional, message, "sampling.")
        self.count("sampling.logit_bias", message.logit_bias)
        return Sampling(
            temperature=number("temperature", 0.0),
            top_k=int(number("top_k", 0)),
            top_p=number("top_p", 1.0),
            min_p=number("min_p", 0.0),
            typical_p=number("typical_p", 1.0),
            repetition_penalty=number("repetition_penalty", 1.0),
            presence_penalty=number("presence_penalty", 0.0),
            frequency_penalty=number("frequency_penalty", 0.0),
            logit_bias=self._biases(message.logit_bias),
            min_tokens=min_tokens,
            num_logprobs=int(number("num_logprobs", 0)) if message.HasField("num_logprobs") else None,
        )

    def _biases(self, biases: Sequence[wire.LogitBias]) -> tuple[tuple[int, float], ...]:
        checked = tuple(self._bias(bias) for bias in biases)
        if len(dict(checked)) < len(checked):
            raise invalid("sampling.logit_bias", "tokens that differ", f"{len(checked):,} biases")
        return checked

    def _bias(self, message: wire.LogitBias) -> tuple[int, float]:
        token = self.in_range("sampling.logit_bias.token", message.token)
        return int(token), self.in_range("sampling.logit_bias.bias", message.bias)

    def _optional(
        self,
        message: "wire.GenerateRequest | wire.Sampling | wire.WatchLoadRequest",
        prefix: str,
        field: str,
        default: float,
    ) -> float:
        if not message.HasField(field):
            return default
        value: float = getattr(message, field)
        return self.in_range(prefix + field, value)


def _message(turn: wire.Message) -> Message:
    calls = tuple(ToolCall(call.id, call.name, call.arguments) for call in turn.tool_calls)
    return Message(turn.role, turn.content, calls, turn.tool_call_id)


def _beyond_context_size(num_tokens: int, context: int) -> Refusal:
    return Refusal(
        grpc.StatusCode.INVALID_ARGUMENT,
        wire.ERROR_REASON_PROMPT_TOO_LONG,
        f"the prompt is {num_tokens} tokens long; a context_size of {context} has room for {context - 1} and an answer",
        field="context_size",
        limit=f"more than the prompt's {num_tokens} tokens",
        value=str(context),
    )
