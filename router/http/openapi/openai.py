"""OpenAI's dialect."""

from collections.abc import Mapping
from typing import Any

from octet.rpc.range import Range
from octet.rpc.tool_checks import NAME
from router.http.octet_options import NUMBERS
from router.http.openai_options import MOST_CHOICES
from router.http.openapi.answers import ALWAYS, ANSWER, BODY, body, refusals, streamed, whole
from router.http.openapi.shapes import (
    ANYTHING,
    COUNT,
    FLAG,
    NOTHING,
    NUMBER,
    TEXT,
    Shape,
    asked,
    maybe,
    named,
    one_of,
    ranged,
    record,
    several,
    text,
    word,
)
from router.reception.limits import Limits

MODEL: Shape = {
    "type": "string",
    "pattern": r"^octet(/[a-z0-9._-]{1,64}(:[a-z0-9._-]{1,64})?)?$",
    "description": "octet routes; octet/SPECIALIST and octet/SPECIALIST:ADAPTER pin",
    "examples": ["octet"],
}
_QUESTION = "undefined reference to vtable"
CHAT: Mapping[str, Any] = {"model": "octet", "messages": [{"role": "user", "content": _QUESTION}], "max_tokens": 64}
_PLAIN: Mapping[str, Any] = {"model": "octet", "prompt": _QUESTION, "max_tokens": 64}


def paths(limits: Limits) -> Mapping[str, Any]:
    return {
        "/v1/chat/completions": {"post": _answer("chat", "ChatRequest", "ChatCompletion", CHAT)},
        "/v1/completions": {"post": _answer("complete", "CompletionRequest", "Completion", _PLAIN)},
        "/v1/models": {
            "get": {
                "operationId": "listModels",
                "summary": "octet, and every name that pins",
                "responses": whole(named("Models"), "all of them") | refusals(ALWAYS),
            }
        },
        "/v1/models/{model}": {
            "get": {
                "operationId": "getModel",
                "summary": "one of them",
                "parameters": [{"name": "model", "in": "path", "required": True, "schema": MODEL}],
                "responses": whole(named("Model"), "it exists") | refusals((*ALWAYS, 404)),
            }
        },
    }


def _answer(name: str, request: str, response: str, example: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "operationId": name,
        "summary": "an answer, whole or as server-sent events",
        "requestBody": body(request, example),
        "responses": streamed(named(response), "the answer") | refusals((*ALWAYS, *BODY, *ANSWER)),
    }


def schemas(limits: Limits) -> Mapping[str, Shape]:
    common = _common(limits)
    return {
        "ChatRequest": asked(
            {"model": MODEL, "messages": several(named("ChatMessage"), 1, limits.messages)},
            {
                **common,
                "logprobs": FLAG,
                "top_logprobs": ranged(limits.ranges()["sampling.num_logprobs"], "integer"),
                "max_completion_tokens": ranged(limits.ranges()["max_tokens"], "integer"),
                **_TOOLS,
            },
            more=True,
        ),
        "CompletionRequest": asked(
            {
                "model": MODEL,
                "prompt": one_of(text(limits.prompt_bytes, 1), several(text(limits.prompt_bytes, 1), 1, MOST_CHOICES)),
            },
            {**common, "logprobs": ranged(limits.ranges()["sampling.num_logprobs"], "integer")},
            more=True,
        ),
        "ChatMessage": _message(limits),
        "OctetOptions": own_options(limits),
        "ChatCompletion": _whole("chat.completion", "ChatChoice"),
        "ChatChoice": record(
            {
                "index": COUNT,
                "message": record(
                    {"role": word("assistant"), "content": maybe(TEXT), "refusal": NOTHING},
                    {"tool_calls": several(named("ChatToolCall"))},
                ),
                "logprobs": maybe(record({"content": several(ANYTHING), "refusal": NOTHING})),
                "finish_reason": word("stop", "length", "tool_calls"),
            }
        ),
        "ChatToolCall": record(
            {"id": TEXT, "type": word("function"), "function": record({"name": TEXT, "arguments": TEXT})}, more=True
        ),
        "Completion": _whole("text_completion", "CompletionChoice"),
        "CompletionChoice": record(
            {
                "index": COUNT,
                "text": TEXT,
                "logprobs": maybe(_COMPLETION_LOGPROBS),
                "finish_reason": word("stop", "length"),
            }
        ),
        "Usage": record(
            {
                "prompt_tokens": COUNT,
                "completion_tokens": COUNT,
                "total_tokens": COUNT,
                "prompt_tokens_details": record({"cached_tokens": COUNT}),
            }
        ),
        "Models": record({"object": word("list"), "data": several(named("Model"), 1)}),
        "Model": record({"id": MODEL, "object": word("model"), "created": COUNT, "owned_by": TEXT}),
    }


_COMPLETION_LOGPROBS = record(
    {
        "tokens": several(TEXT),
        "token_logprobs": several(NUMBER),
        "top_logprobs": several({"type": "object", "additionalProperties": NUMBER}),
        "text_offset": NOTHING,
    }
)
_FUNCTION = asked(
    {"name": {"type": "string", "pattern": f"^{NAME}$"}},
    {"description": TEXT, "parameters": {"type": "object"}, "strict": FLAG},
    more=True,
)
_TOOLS: Mapping[str, Shape] = {
    "tools": several(record({"type": word("function"), "function": _FUNCTION}, more=True)),
    "tool_choice": one_of(
        word("auto", "none", "required"),
        record({"type": word("function"), "function": record({"name": TEXT}, more=True)}, more=True),
    ),
    "parallel_tool_calls": FLAG,
    "response_format": one_of(
        record({"type": word("text", "json_object")}, more=True),
        record(
            {
                "type": word("json_schema"),
                "json_schema": asked({"name": TEXT}, {"schema": {"type": "object"}, "strict": FLAG}, more=True),
            },
            more=True,
        ),
    ),
}


def _common(limits: Limits) -> dict[str, Shape]:
    ranges = limits.ranges()
    sampling = ("temperature", "presence_penalty", "frequency_penalty", "min_p", "repetition_penalty")
    stop = text(limits.stop_bytes, 1)
    return {
        **{key: ranged(ranges[f"sampling.{key}"], "number") for key in sampling},
        "top_p": ranged(Range(0, ranges["sampling.top_p"].most), "number"),
        "top_k": ranged(Range(-1, ranges["sampling.top_k"].most), "integer"),
        "min_tokens": ranged(ranges["min_tokens"], "integer"),
        "ignore_eos": FLAG,
        "logit_bias": {"type": "object", "additionalProperties": ranged(ranges["sampling.logit_bias.bias"], "number")},
        "seed": ranged(ranges["seed"], "integer"),
        "max_tokens": ranged(ranges["max_tokens"], "integer"),
        "n": ranged(Range(1, MOST_CHOICES), "integer"),
        "stop": one_of(stop, several(stop, 0, limits.stops)),
        "stream": FLAG,
        "stream_options": asked({}, {"include_usage": FLAG}, more=True),
        "user": text(limits.id_bytes),
        "prompt_cache_key": text(limits.id_bytes),
        "metadata": {"type": "object", "additionalProperties": ANYTHING},
        "octet": named("OctetOptions"),
    }


def _message(limits: Limits) -> Shape:
    part = record({"type": word("text"), "text": TEXT}, more=True)
    return asked(
        {"role": word("system", "developer", "user", "assistant", "tool")},
        {"content": one_of(TEXT, several(part)), "tool_calls": several(named("ChatToolCall")), "tool_call_id": TEXT},
        more=True,
    )


def own_options(limits: Limits, *more: str) -> Shape:
    """As every dialect takes them; `more` are whole numbers."""
    name = text(limits.name_bytes, 1)
    return asked(
        {},
        {
            "intent": name,
            **{key: ranged(limits.ranges()[key], "integer") for key in (*NUMBERS, *more)},
            "exclude": several(name, 0, limits.specialists),
            "adapters": several(name, 0, limits.adapters),
            "session_id": text(limits.id_bytes),
            "receipt": FLAG,
            "structure": named("Structure"),
        },
        more=False,
    )


def _whole(kind: str, choice: str) -> Shape:
    return record(
        {
            "id": TEXT,
            "object": word(kind),
            "created": COUNT,
            "model": MODEL,
            "system_fingerprint": maybe(TEXT),
            "choices": several(named(choice), 1, MOST_CHOICES),
            "usage": named("Usage"),
        },
        {"octet": record({"receipts": several({"type": "object"})})},
    )
