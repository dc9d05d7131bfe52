"""What may be asked for beside the prompt."""

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypedDict

from octet.sdk.structure import Structure
from octet.sdk.tools import Tool, ToolCall, ToolChoice


class Message(TypedDict):
    """One turn of a conversation."""

    role: str
    content: str
    tool_calls: NotRequired[Sequence[ToolCall]]
    """An assistant's: what it called."""
    tool_call_id: NotRequired[str]
    """A tool's: which call it answers."""


class Options(TypedDict, total=False):
    """What is left out, or None, is chosen by the router: by the kind of task, or by the specialist."""

    messages: Sequence[Message] | None
    """A conversation instead of a prompt, the newest message last."""
    template: str | None
    """Text with {prompt} and {body} in it."""
    body: str | None
    """What the prompt is about."""

    intent: str | None
    force: str | Sequence[str] | None
    """Only these may answer; the first one that can does."""
    exclude: str | Sequence[str] | None
    adapters: str | Sequence[str] | None
    """In the order they are applied."""
    max_experts: int | None

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    logprobs: int | None
    """0 for those of the chosen tokens, n for the n most likely as well."""
    seed: int | None
    max_tokens: int | None
    min_tokens: int | None
    stop: str | Sequence[str] | None
    ignore_eos: bool | None
    structure: Structure | None
    """What the answer must look like: a JSON Schema, Json, Regex or Choice."""
    tools: Sequence[Tool] | None
    """What the model may call; only with messages."""
    tool_choice: Literal["auto", "none", "required"] | ToolChoice | None
    context_size: int | None

    priority: int | None
    """0 to 9, higher is served first."""
    timeout: float | None
    """Seconds for everything, retries and the whole answer included."""
    first_token_timeout: float | None
    """Seconds to the first token, retries included: without it by then, the router ends the request. A router that does
    not answer at all is given up at `timeout`."""
    session: str | None
    """Requests of one conversation, to be sent where its beginning is still in memory."""
    user: str | None
    """The conversation's key where neither `session` nor `metadata["session_id"]` is given."""
    metadata: Mapping[str, str] | None
    """Your own; only `session_id` is read."""
    tenant_salt: bytes | None
    request_id: str | None
    """The caller's own name for the request; a retry keeps it."""
    validate: bool | None
    """The whole answer is checked by its task's verifier; the receipt says what came of it."""
    trace: str | None
    """A W3C traceparent."""
