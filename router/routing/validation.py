"""Limits of the router, and the validation of requests against them."""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import isfinite
from typing import Any

from octet.clock import Clock
from octet.limits import MAX_DRAFT_WINDOW, MAX_PROMPT_BYTES, Range, shorten
from octet.rpc.checks import ASSISTANT, FieldChecks, ToolChecks, check_unique, message_texts
from octet.rpc.messages import copy_message
from octet.rpc.refusal import deadline_exceeded, invalid_field, prompt_too_large
from octet.v1 import inference_pb2 as wire
from octet.v1 import specialist_pb2 as specialist_wire
from router.request import ANONYMOUS, SESSION_METADATA_KEY, CallerIdentity, Request, Tracer, identify_session
from router.routing.follow_ups import is_follow_up
from router.routing.normal_text import standardize, trim

REQUEST_BYTES = 3 << 20
"""Larger than the longest prompt with the largest tools and structure, so that the limit of the prompt decides. Leaves
room for the system prompt within a replica's limit of 4 MiB."""
MAX_TIMEOUT_MS = 24 * 3600 * 1000
_MAX_TOKENS = 200_000
_INT32, _INT64 = 2**31, 2**63
RANGES: Mapping[str, Range] = {
    "sampling.temperature": Range(1e-4, 2, or_zero=True),
    "sampling.top_k": Range(0, _INT32 - 1),
    "sampling.top_p": Range(0, 1, open=True),
    "sampling.min_p": Range(0, 1),
    "sampling.typical_p": Range(0, 1, open=True),
    "sampling.repetition_penalty": Range(1, 2),
    "sampling.presence_penalty": Range(-10, 10),
    "sampling.frequency_penalty": Range(-10, 10),
    "sampling.num_logprobs": Range(0, 20),
    "sampling.logit_bias.token": Range(0, _INT32 - 1),
    "sampling.logit_bias.bias": Range(-100, 100),
    "max_experts": Range(1, 10),
    "seed": Range(-_INT64, _INT64 - 1),
    "max_tokens": Range(1, _MAX_TOKENS),
    "min_tokens": Range(0, _MAX_TOKENS),
    "context_size": Range(8, _INT32 - 1),
    "draft_window": Range(0, MAX_DRAFT_WINDOW),
    "priority": Range(0, 9),
    "timeout_ms": Range(1, MAX_TIMEOUT_MS),
    "first_token_timeout_ms": Range(1, MAX_TIMEOUT_MS),
    "wait_ms": Range(0, MAX_TIMEOUT_MS),
}
"""The range of each number, by wire field."""
SIZES: Mapping[str, int] = {
    **dict.fromkeys(("request_id", "messages.tool_calls.id", "session_id"), 128),
    **dict.fromkeys(("user_id", "ticket"), 256),
    **dict.fromkeys(("intent", "force_specialists", "exclude_specialists", "adapters", "tenant_salt"), 64),
    "template": 100_000,
    **dict.fromkeys(("prompt", "body", "messages"), MAX_PROMPT_BYTES),  # in total, after template and body are applied
    "messages.role": 32,
    **dict.fromkeys(("messages.tool_calls.arguments", "tools.parameters", "structure.json_schema"), 64 << 10),
    "tools": 256 << 10,  # in total
    "tools.description": 8 << 10,
    "stop": 256,
    "metadata.key": 64,
    "metadata.value": 512,
    "structure.regex": 8 << 10,
    "structure.choice": 64 << 10,  # in total
    "structure.choice.choices": 1024,
}
"""Maximum bytes of each string, by wire field."""
COUNTS: Mapping[str, int] = {
    **dict.fromkeys(("messages", "sampling.logit_bias", "structure.choice.choices"), 1024),
    **dict.fromkeys(("messages.tool_calls", "tools"), 128),
    **dict.fromkeys(("metadata", "force_specialists", "exclude_specialists", "stop"), 16),
    "adapters": 4,
}
"""Maximum length of each list, by wire field."""
DEFAULT_PRIORITY = 5
USER = "user"
ENOUGH_CHARS = 256  # without a subject, earlier messages are put before a follow-up until they have this length
MAX_EARLIER = 16  # earlier messages among which the subject is sought
MAX_ROUTING_CHARS = 1 << 16
"""The limit on the text for routing. Only the beginning and the end of a longer text are read: they usually contain
the question and the last error, and reading a megabyte would delay the tokens of other requests."""
_PLACEHOLDER = re.compile(r"\{(prompt|body)\}")


class RequestValidator:
    def __init__(self, clock: Clock, new_id: Callable[[], str], tracer: Tracer, *, default_timeout: float) -> None:
        """`default_timeout` (seconds) applies to requests without a deadline."""
        self._clock = clock
        self._new_id = new_id
        self._tracer = tracer
        self._default_timeout = default_timeout
        self._check = RequestChecks()

    def validate(
        self,
        message: wire.InferRequest,
        seconds_left: float | None,
        traceparent: str | None,
        tracestate: str = "",
        caller: CallerIdentity = ANONYMOUS,
    ) -> Request:
        """Return a valid request, or raise Refusal. `seconds_left` is the time until the transport's deadline."""
        arrival = self._clock.now()
        check = self._check
        num_bytes = check.num_bytes(message)
        messages = self._messages(message)
        force = check.names("force_specialists", message.force_specialists)
        exclude = check.names("exclude_specialists", message.exclude_specialists)
        for name in force:
            if name in exclude:
                raise invalid_field("exclude_specialists", "disjoint from force_specialists", f"{name} in both")
        max_tokens = check.number(message, "max_tokens")
        min_tokens = check.number(message, "min_tokens")
        if max_tokens is not None and min_tokens is not None and min_tokens > max_tokens:
            raise invalid_field("min_tokens", f"at most max_tokens ({max_tokens})", str(min_tokens))
        priority = check.number(message, "priority")
        first_token_ms = check.number(message, "first_token_timeout_ms")
        salt = caller.salt(check.size("tenant_salt", message.tenant_salt))
        tools, tool_choice = check.tools(message)
        if message.embed:
            _check_embed(message)
        return Request(
            request_id=check.identifier("request_id", message.request_id) or self._new_id(),
            messages=messages,
            text=routing_text(messages),
            arrival=arrival,
            deadline=arrival + self._timeout(check.number(message, "timeout_ms"), seconds_left),
            first_deadline=None if first_token_ms is None else arrival + first_token_ms / 1000,
            trace=self._tracer.receive(traceparent, tracestate),
            num_bytes=num_bytes,
            intent=message.intent and check.name("intent", message.intent),
            force=force,
            exclude=exclude,
            adapters=check.names("adapters", message.adapters),
            max_experts=check.number(message, "max_experts"),
            sampling=check.sampling(message),
            seed=check.number(message, "seed"),
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop=check.stops(message.stop),
            ignore_eos=message.ignore_eos,
            context_size=check.number(message, "context_size"),
            draft_window=check.number(message, "draft_window"),
            priority=DEFAULT_PRIORITY if priority is None else priority,
            session=identify_session(
                check.identifier("session_id", message.session_id),
                check.metadata(message.metadata),
                check.identifier("user_id", message.user_id),
                salt,
            ),
            tenant_salt=salt,
            structure=check.answer_structure(message),
            validate=message.validate,
            caller=caller,
            tools=tools,
            tool_choice=tool_choice,
            embed=message.embed,
            ticket=check.identifier("ticket", message.ticket),
            wait_ms=check.number(message, "wait_ms"),
        )

    def _messages(self, message: wire.InferRequest) -> Sequence[wire.Message]:
        if not message.messages:
            check = self._check.text
            prompt, body = (check(name, trim(check(name, getattr(message, name)))) for name in ("prompt", "body"))
            template = check("template", standardize(check("template", message.template)))
            if not prompt:
                value = "only whitespace" if message.prompt else "''"
                raise invalid_field("prompt", "text with visible characters", value)
            return (wire.Message(role=USER, content=trim(fill_template(template, prompt, body, SIZES["messages"]))),)
        for field in ("prompt", "template", "body"):
            if getattr(message, field):
                raise invalid_field(field, "unset when messages are given", "both")
        copies: Sequence[wire.Message] = specialist_wire.Chat(messages=message.messages).messages
        for each in copies:
            _standardize_message(each)
        self._check.messages(copies)
        if not any(each.role == USER and each.content for each in copies):
            limit = "a conversation with a user message that is not empty"
            raise invalid_field("messages", limit, f"{len(copies)} messages without one")
        return copies

    def _timeout(self, timeout_ms: int | None, seconds_left: float | None) -> float:
        """Return the lesser of `timeout_ms` and `seconds_left`, in seconds; the default timeout if neither is given."""
        named = [] if timeout_ms is None else [timeout_ms / 1000]
        if seconds_left is not None and isfinite(seconds_left):
            named.append(min(seconds_left, MAX_TIMEOUT_MS / 1000))
        seconds = min(named, default=self._default_timeout)
        if seconds <= 0:
            raise deadline_exceeded()
        return seconds


class RequestChecks(FieldChecks):
    """Checks of request fields. Every method raises Refusal with the field, the limit and the value."""

    def __init__(self) -> None:
        super().__init__(RANGES, SIZES, COUNTS)
        self._tools = ToolChecks(self)
        self._sampling_fields = tuple(
            field.removeprefix("sampling.") for field in self._ranges if field.count(".") == 1
        )

    def num_bytes(self, message: wire.InferRequest) -> int:
        size: int = message.ByteSize()
        if size > REQUEST_BYTES:
            raise prompt_too_large("request", MAX_PROMPT_BYTES, f"{size:,} bytes")
        return size

    def number(self, message: wire.InferRequest, field: str) -> int | None:
        """Return the field's value, which must be in its range; None if the field is unset."""
        if not message.HasField(field):
            return None
        value: int = getattr(message, field)
        self.in_range(field, value)
        return value

    def sampling(self, message: wire.InferRequest) -> wire.Sampling | None:
        if not message.HasField("sampling"):
            return None
        sampling = message.sampling
        for field in self._sampling_fields:
            if sampling.HasField(field):
                self.in_range(f"sampling.{field}", getattr(sampling, field))
        biases = sampling.logit_bias
        self.count("sampling.logit_bias", biases)
        for bias in biases:
            self.in_range("sampling.logit_bias.token", bias.token)
            self.in_range("sampling.logit_bias.bias", bias.bias)
        check_unique("sampling.logit_bias", "tokens", [bias.token for bias in biases])
        return copy_message(sampling)

    def answer_structure(self, message: wire.InferRequest) -> wire.Structure | None:
        if not message.HasField("structure"):
            return None
        self.structure(message.structure)
        return copy_message(message.structure)

    def tools(self, message: wire.InferRequest) -> tuple[tuple[wire.Tool, ...], wire.ToolChoice | None]:
        self._tools.tools(message.tools)
        if message.tools and not message.messages:
            raise invalid_field("tools", "unset unless messages are given", "tools with a prompt")
        tools = tuple(wire.Tool.FromString(tool.SerializeToString()) for tool in message.tools)
        if not message.HasField("tool_choice"):
            return tools, None
        self._tools.choice(message.tool_choice, message.tools)
        return tools, copy_message(message.tool_choice)

    def messages(self, messages: Sequence[Any]) -> None:
        """Check the number, size and roles of messages, and that tool calls and their results match."""
        self.count("messages", messages)
        self._tools.conversation(messages)
        size = sum(len(text.encode()) for each in messages for text in message_texts(each))
        limit = self._sizes["messages"]
        if size > limit:
            raise prompt_too_large("messages", limit, f"{size:,} bytes")
        for each in messages:
            self.role("messages.role", each.role)

    def metadata(self, metadata: Mapping[str, str]) -> Mapping[str, str]:
        if not metadata:
            return {}
        self.count("metadata", metadata)
        for key, value in metadata.items():
            if not key or not self.text("metadata.key", key).isprintable():
                raise invalid_field("metadata", "a mapping with printable, non-empty keys", f"the key {shorten(key)}")
            self.text("metadata.value", value)
        session, limit = metadata.get(SESSION_METADATA_KEY, ""), self._sizes["session_id"]
        if len(session.encode()) > limit or not session.isprintable():
            allowed = f"a printable session id of at most {limit} bytes"
            raise invalid_field("metadata", allowed, f"session_id {shorten(session)}")
        return metadata


def _standardize_message(message: wire.Message) -> None:
    """Standardise a message in place. An assistant's message stays as it is: it repeats what a model wrote, which must
    be found in the cache. Only a user's message is trimmed."""
    if message.role != ASSISTANT:
        content = trim(message.content) if message.role == USER else standardize(message.content)
        if content != message.content:
            message.content = content


_NOT_FOR_EMBEDDINGS = (
    *("messages", "tools", "structure", "sampling", "seed", "max_tokens", "min_tokens", "stop", "ignore_eos"),
    *("context_size", "draft_window", "validate"),
)


def _check_embed(message: wire.InferRequest) -> None:
    """Raises Refusal for a field that would have no effect on an embedding."""
    for field in _NOT_FOR_EMBEDDINGS:
        given = message.HasField(field) if message.DESCRIPTOR.fields_by_name[field].has_presence else None
        if given or (given is None and getattr(message, field)):
            raise invalid_field(field, "unset when embed is set", "both")


def fill_template(template: str, prompt: str, body: str, max_bytes: int) -> str:
    """Return the template with {prompt} and {body} replaced; braces in the inserted text are left alone. Raises Refusal
    if the result exceeds `max_bytes`, or if the template omits a prompt or body that the caller sent."""
    template = template or ("{prompt}\n\n{body}" if body else "{prompt}")
    values = {"prompt": prompt, "body": body}
    size = len(template.encode())
    for name, value in values.items():
        marker = f"{{{name}}}"
        if value and marker not in template:
            raise invalid_field("template", f"text that contains {marker}", shorten(template))
        size += template.count(marker) * (len(value.encode()) - len(marker))
    if size > max_bytes:
        raise prompt_too_large("template", max_bytes, f"{size:,} bytes")
    return _PLACEHOLDER.sub(lambda found: values[found[1]], template)


def routing_text(messages: Sequence[wire.Message]) -> str:
    """Return the text for rules and classifier: the newest user message. If it is a follow-up, the newest earlier
    message that names a subject precedes it; without one, all earlier messages up to a limit do. Answers and system
    prompts are left out: they would bias the decision towards the previous one."""
    said = [content for each in reversed(messages) if each.role == USER and (content := each.content.strip())]
    kept = said[:1]
    if len(said) > 1 and is_follow_up(said[0]):
        earlier = said[1 : MAX_EARLIER + 1]
        subject = next((content for content in earlier if not is_follow_up(content)), None)
        kept += [subject] if subject is not None else _up_to(earlier, ENOUGH_CHARS)
    text = "\n\n".join(reversed(kept))
    if len(text) <= MAX_ROUTING_CHARS:
        return text
    half = MAX_ROUTING_CHARS // 2
    return f"{text[: half - 1]}\n{text[-half:]}"


def _up_to(texts: Sequence[str], enough: int) -> list[str]:
    """Return the first texts that together have at least `enough` characters."""
    lengths = accumulate(map(len, texts), initial=0)
    return [text for text, before in zip(texts, lengths, strict=False) if before < enough]
