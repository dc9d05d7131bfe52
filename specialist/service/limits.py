"""The most and the least of every field, in one place: what is refused and what Describe says are the same table."""

from collections.abc import Iterator
from dataclasses import dataclass

from octet.rpc.range import Range
from specialist.service.settings import MIN_CONTEXT

_INT64 = 2**63
REQUEST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    context: int
    """Tokens, prompt and answer together: what the model can attend over and the pool can hold."""
    vocab_size: int
    request_bytes: int = REQUEST_BYTES
    bytes_per_token: int = 16
    """A prompt with more bytes than this for every token of the context is refused before it is tokenised."""
    default_max_tokens: int = 256
    max_tokens: int = 1 << 20
    """What may be asked for; what the context leaves room for is given."""
    id_bytes: int = 128
    name_bytes: int = 64
    path_bytes: int = 4096
    salt_bytes: int = 64
    adapters: int = 4
    messages: int = 1024
    role_bytes: int = 32
    stops: int = 16
    stop_bytes: int = 256
    logit_biases: int = 1024
    schema_bytes: int = 64 << 10
    regex_bytes: int = 8 << 10
    choices: int = 1024
    choice_bytes: int = 1024
    choices_bytes: int = 64 << 10
    """Of all of them together."""
    tools: int = 128
    tools_bytes: int = 256 << 10
    """Of all of them together."""
    description_bytes: int = 8 << 10
    logprobs: int = 20
    timeout_ms: int = 24 * 3600 * 1000
    priority: int = 1000
    watch_interval_ms: int = 60_000
    least_heartbeat_ms: int = 10
    """Watchers are many, and what they hear is not to become the work."""

    @property
    def prompt_tokens(self) -> int:
        """Room for one token of an answer is left."""
        return self.context - 1

    @property
    def prompt_bytes(self) -> int:
        return min(self.context * self.bytes_per_token, self.request_bytes)

    def ranges(self) -> dict[str, Range]:
        """By the field's name on the wire."""
        return {
            "sampling.temperature": Range(1e-4, 100, or_zero=True),
            "sampling.top_k": Range(0, self.vocab_size),
            "sampling.top_p": Range(0, 1, open=True),
            "sampling.min_p": Range(0, 1),
            "sampling.typical_p": Range(0, 1, open=True),
            "sampling.repetition_penalty": Range(0.01, 10),
            "sampling.presence_penalty": Range(-10, 10),
            "sampling.frequency_penalty": Range(-10, 10),
            "sampling.num_logprobs": Range(0, self.logprobs),
            "sampling.logit_bias.token": Range(0, self.vocab_size - 1),
            "sampling.logit_bias.bias": Range(-100, 100),
            "tokens.ids": Range(0, self.vocab_size - 1),
            "seed": Range(-_INT64, _INT64 - 1),
            "max_tokens": Range(1, self.max_tokens),
            "min_tokens": Range(0, self.context),
            "priority": Range(-self.priority, self.priority),
            "timeout_ms": Range(1, self.timeout_ms),
            "first_token_timeout_ms": Range(1, self.timeout_ms),
            "context_size": Range(MIN_CONTEXT, self.context),
            "min_interval_ms": Range(0, self.watch_interval_ms),
            "heartbeat_ms": Range(self.least_heartbeat_ms, self.watch_interval_ms),
        }

    def sizes(self) -> dict[str, int]:
        """The most bytes of each string, by the field's name on the wire."""
        return {
            "request_id": self.id_bytes,
            "text": self.prompt_bytes,
            "chat.messages": self.prompt_bytes,
            "chat.messages.role": self.role_bytes,
            "chat.messages.tool_calls.id": self.id_bytes,
            "chat.messages.tool_calls.arguments": self.schema_bytes,
            "chat.tools": self.tools_bytes,
            "chat.tools.description": self.description_bytes,
            "chat.tools.parameters": self.schema_bytes,
            "stop": self.stop_bytes,
            "adapters": self.name_bytes,
            "name": self.name_bytes,
            "path": self.path_bytes,
            "tenant_salt": self.salt_bytes,
            "session_key": self.salt_bytes,
            "structure.json_schema": self.schema_bytes,
            "structure.regex": self.regex_bytes,
            "structure.choice": self.choices_bytes,
            "structure.choice.choices": self.choice_bytes,
        }

    def counts(self) -> dict[str, int]:
        """The most elements of each list, by the field's name on the wire."""
        return {
            "tokens.ids": self.prompt_tokens,
            "chat.messages": self.messages,
            "chat.messages.tool_calls": self.tools,
            "chat.tools": self.tools,
            "adapters": self.adapters,
            "stop": self.stops,
            "sampling.logit_bias": self.logit_biases,
            "structure.choice.choices": self.choices,
        }

    def described(self) -> Iterator[tuple[str, str]]:
        yield "request", f"at most {self.request_bytes:,} bytes"
        yield "prompt", f"at most {self.prompt_tokens:,} tokens"
        for field, most in self.sizes().items():
            yield field, f"at most {most:,} bytes"
        for field, most in self.counts().items():
            yield field, f"at most {most:,} of them"
        for field, allowed in self.ranges().items():
            yield field, str(allowed)
