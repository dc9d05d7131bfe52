"""The most and the least of every field of a request, in one table: what is refused and what can be listed agree."""

from dataclasses import dataclass

from octet.rpc.range import Range

_INT64 = 2**63


@dataclass(frozen=True, slots=True)
class Limits:
    request_bytes: int = 2 << 20
    """Leaves the replica's own 4 MiB room for the system prompt."""
    prompt_bytes: int = 500_000
    template_bytes: int = 100_000
    body_bytes: int = 1_000_000
    conversation_bytes: int = 2_000_000
    """Of all messages together, template and body applied."""
    id_bytes: int = 128
    name_bytes: int = 64
    salt_bytes: int = 64
    role_bytes: int = 32
    stop_bytes: int = 256
    messages: int = 1024
    metadata: int = 16
    metadata_key_bytes: int = 64
    metadata_value_bytes: int = 512
    specialists: int = 16
    adapters: int = 4
    stops: int = 16
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
    tokens: int = 200_000
    experts: int = 10
    priority: int = 9
    timeout_ms: int = 24 * 3600 * 1000

    def ranges(self) -> dict[str, Range]:
        """By the field's name on the wire."""
        return {
            "sampling.temperature": Range(1e-4, 2, or_zero=True),
            "sampling.top_k": Range(0, 2**31 - 1),
            "sampling.top_p": Range(0, 1, open=True),
            "sampling.min_p": Range(0, 1),
            "sampling.typical_p": Range(0, 1, open=True),
            "sampling.repetition_penalty": Range(1, 2),
            "sampling.presence_penalty": Range(-10, 10),
            "sampling.frequency_penalty": Range(-10, 10),
            "sampling.num_logprobs": Range(0, self.logprobs),
            "sampling.logit_bias.token": Range(0, 2**31 - 1),
            "sampling.logit_bias.bias": Range(-100, 100),
            "max_experts": Range(1, self.experts),
            "seed": Range(-_INT64, _INT64 - 1),
            "max_tokens": Range(1, self.tokens),
            "min_tokens": Range(0, self.tokens),
            "context_size": Range(8, 2**31 - 1),
            "priority": Range(0, self.priority),
            "timeout_ms": Range(1, self.timeout_ms),
            "first_token_timeout_ms": Range(1, self.timeout_ms),
        }

    def sizes(self) -> dict[str, int]:
        """The most bytes of each string, by the field's name on the wire."""
        return {
            "request_id": self.id_bytes,
            "prompt": self.prompt_bytes,
            "template": self.template_bytes,
            "body": self.body_bytes,
            "messages": self.conversation_bytes,
            "messages.role": self.role_bytes,
            "messages.tool_calls.id": self.id_bytes,
            "messages.tool_calls.arguments": self.schema_bytes,
            "tools": self.tools_bytes,
            "tools.description": self.description_bytes,
            "tools.parameters": self.schema_bytes,
            "intent": self.name_bytes,
            "force_specialists": self.name_bytes,
            "exclude_specialists": self.name_bytes,
            "adapters": self.name_bytes,
            "stop": self.stop_bytes,
            "session_id": self.id_bytes,
            "user_id": self.id_bytes,
            "tenant_salt": self.salt_bytes,
            "metadata.key": self.metadata_key_bytes,
            "metadata.value": self.metadata_value_bytes,
            "structure.json_schema": self.schema_bytes,
            "structure.regex": self.regex_bytes,
            "structure.choice": self.choices_bytes,
            "structure.choice.choices": self.choice_bytes,
        }

    def counts(self) -> dict[str, int]:
        """The most elements of each list, by the field's name on the wire."""
        return {
            "messages": self.messages,
            "messages.tool_calls": self.tools,
            "tools": self.tools,
            "metadata": self.metadata,
            "force_specialists": self.specialists,
            "exclude_specialists": self.specialists,
            "adapters": self.adapters,
            "stop": self.stops,
            "sampling.logit_bias": self.logit_biases,
            "structure.choice.choices": self.choices,
        }
