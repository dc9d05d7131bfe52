"""Anthropic's dialect."""

from collections.abc import Mapping
from typing import Any

from octet.rpc.range import Range
from octet.rpc.tool_checks import NAME
from router.http.openapi.answers import ALWAYS, ANSWER, BODY, body, refusals, streamed, whole
from router.http.openapi.openai import CHAT, MODEL, own_options
from router.http.openapi.shapes import (
    COUNT,
    FLAG,
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

_REFUSALS = refusals((*ALWAYS, *BODY, *ANSWER), "AnthropicError")
PATHS: Mapping[str, Any] = {
    "/v1/messages": {
        "post": {
            "operationId": "createMessage",
            "summary": "an answer for Anthropic's clients, whole or as server-sent events",
            "requestBody": body("MessageRequest", CHAT),
            "responses": streamed(named("AnthropicMessage"), "the message") | _REFUSALS,
        }
    },
    "/v1/messages/count_tokens": {
        "post": {
            "operationId": "countTokens",
            "summary": "how many tokens the prompt of such a message is, for whoever would answer now",
            "requestBody": body("CountRequest", {key: CHAT[key] for key in ("model", "messages")}),
            "responses": whole(record({"input_tokens": COUNT}), "so many") | _REFUSALS,
        }
    },
}
_KINDS = (
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "timeout_error",
)
_CACHE: Mapping[str, Shape] = {"cache_control": {"type": "object"}}
_TEXT_BLOCK = asked({"type": word("text"), "text": TEXT}, _CACHE, more=False)
_CALL = record({"type": word("tool_use"), "id": TEXT, "name": TEXT, "input": {"type": "object"}})
_CALL_BLOCK = asked(
    {"type": word("tool_use"), "id": TEXT, "name": TEXT}, {"input": {"type": "object"}, **_CACHE}, more=False
)
_RESULT_BLOCK = asked(
    {"type": word("tool_result"), "tool_use_id": TEXT},
    {"content": one_of(TEXT, several(_TEXT_BLOCK)), "is_error": FLAG, **_CACHE},
    more=False,
)


def schemas(limits: Limits) -> Mapping[str, Shape]:
    prompt = _prompt(limits)
    needed = {"model": MODEL, "messages": several(named("AnthropicTurn"), 1, limits.messages)}
    longest = ranged(limits.ranges()["max_tokens"], "integer")
    return {
        "MessageRequest": asked({**needed, "max_tokens": longest}, {**prompt, **_drawing(limits)}, more=False),
        "CountRequest": asked(needed, prompt, more=False),
        "AnthropicTurn": one_of(
            _turn("user", _TEXT_BLOCK, _RESULT_BLOCK),
            _turn("assistant", _TEXT_BLOCK, _CALL_BLOCK),
            _turn("system", _TEXT_BLOCK),
        ),
        "AnthropicTool": _tool(),
        "AnthropicOctetOptions": own_options(limits, "seed"),
        "AnthropicMessage": _message(),
        "AnthropicError": _error(),
    }


def _prompt(limits: Limits) -> dict[str, Shape]:
    form = record({"type": word("json_schema"), "schema": {"type": "object"}})
    return {
        **_CACHE,
        "system": one_of(TEXT, several(_TEXT_BLOCK)),
        "tools": several(named("AnthropicTool")),
        "tool_choice": one_of(
            asked({"type": word("auto", "any", "none")}, {"disable_parallel_tool_use": FLAG}, more=False),
            asked({"type": word("tool"), "name": TEXT}, {"disable_parallel_tool_use": FLAG}, more=False),
        ),
        "output_config": asked({}, {"format": form}, more=False),
        "thinking": record({"type": word("disabled")}),
        "octet": named("AnthropicOctetOptions"),
    }


def _drawing(limits: Limits) -> dict[str, Shape]:
    """How an answer is drawn."""
    ranges = limits.ranges()
    warmest = Range(ranges["sampling.temperature"].least, 1, or_zero=True)
    return {
        "stream": FLAG,
        "stop_sequences": several(text(limits.stop_bytes, 1), 0, limits.stops),
        "temperature": ranged(warmest, "number"),
        "top_k": ranged(ranges["sampling.top_k"], "integer"),
        "top_p": ranged(ranges["sampling.top_p"], "number"),
        "metadata": asked({}, {"user_id": text(limits.id_bytes)}, more=False),
        "service_tier": word("auto", "standard_only"),
        "speed": word("standard"),
    }


def _turn(role: str, *blocks: Shape) -> Shape:
    return asked({"role": word(role), "content": one_of(TEXT, several(one_of(*blocks)))}, _CACHE, more=False)


def _tool() -> Shape:
    return asked(
        {"name": {"type": "string", "pattern": f"^{NAME}$"}, "input_schema": {"type": "object"}},
        {"type": word("custom"), "description": TEXT, "strict": FLAG, **_CACHE},
        more=False,
    )


def _message() -> Shape:
    return record(
        {
            "id": TEXT,
            "type": word("message"),
            "role": word("assistant"),
            "model": MODEL,
            "content": several(one_of(record({"type": word("text"), "text": TEXT}), _CALL)),
            "stop_reason": word("end_turn", "max_tokens", "stop_sequence", "tool_use"),
            "stop_sequence": maybe(TEXT),
            "usage": record(
                {
                    "input_tokens": COUNT,
                    "cache_creation_input_tokens": COUNT,
                    "cache_read_input_tokens": COUNT,
                    "output_tokens": COUNT,
                }
            ),
        },
        {"octet": record({"receipts": several({"type": "object"})})},
    )


def _error() -> Shape:
    details = record({"error_code": maybe(TEXT), "param": maybe(TEXT)})
    said = several(record({"type": word("text"), "text": TEXT}))
    error = record({"type": word(*_KINDS), "message": TEXT, "details": details}, {"partial": said})
    return record({"type": word("error"), "error": error, "request_id": TEXT})
