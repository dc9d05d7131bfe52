"""HTTP headers and the request bodies of every API."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from octet.rpc.refusal import Refusal
from octet.telemetry.requests import parse_traceparent
from octet.v1 import operator_pb2
from router.api.http.access_control import check_same_origin
from router.api.http.anthropic import parse_count_request, parse_message_request
from router.api.http.body import parse_object
from router.api.http.errors import ApiError
from router.api.http.openai_requests import parse_chat_request, parse_completion_request
from router.api.http.operator_routes import OPERATOR_CHANGES
from router.api.http.responses_requests import (
    ItemReference,
    input_items,
    make_responses_request,
    number_items,
    read_responses_request,
    referenced_response,
)
from router.api.keys.gate import extract_key
from router.request import Tracer
from tests.fuzz.parser import Parser
from tests.router.http.infer_bodies import parse_infer_request
from tests.router.routing.sample_requests import new_validator

_TOOL = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {"at": {}}}}
_OPENAI: dict[str, Any] = {
    "model": "octet/build",
    "max_tokens": 8,
    "temperature": 0.5,
    "top_p": 0.9,
    "seed": 7,
    "n": 2,
    "stop": ["\n"],
    "logit_bias": {"3": -1},
    "user": "ann",
    "metadata": {"session_id": "s"},
}
CHAT = (
    {**_OPENAI, "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
    {
        "model": "octet",
        "messages": [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "look"},
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "nothing"},
        ],
        "tools": [{"type": "function", "function": _TOOL}],
        "tool_choice": "auto",
        "logprobs": True,
        "top_logprobs": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    {
        "model": "octet",
        "messages": [{"role": "user", "content": "x"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
    },
)
COMPLETION = ({**_OPENAI, "prompt": ["a", "b"]}, {"model": "octet", "prompt": "a", "logprobs": 2})
MESSAGES = (
    {
        "model": "octet/build",
        "max_tokens": 8,
        "system": [{"type": "text", "text": "Be short."}],
        "messages": [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {"at": [1]}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "nothing"}]},
        ],
        "tools": [{"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "any"},
        "temperature": 1.0,
        "top_k": 4,
        "stop_sequences": ["x"],
        "metadata": {"user_id": "ann"},
    },
    {
        "model": "octet",
        "max_tokens": 8,
        "messages": [{"role": "user", "content": "x"}],
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
    },
)
_HEX = "0123456789abcdef" * 2
RESPONSES = (
    {
        **{"model": "octet/build", "input": "look", "instructions": "Be short.", "max_output_tokens": 8},
        **{"top_logprobs": 2, "include": ["message.output_text.logprobs"], "metadata": {"a": "b"}, "store": False},
        **{"previous_response_id": f"resp_{_HEX}", "reasoning": {"effort": "low"}, "truncation": "disabled"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}, "verbosity": "low"},
    },
    {
        "model": "octet",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "look"}]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "item_reference", "id": f"msg_{_HEX}_0"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}], "id": "msg_1"},
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}", "status": "completed"},
            {"type": "function_call_output", "call_id": "c", "output": "nothing"},
        ],
        "tools": [{"type": "function", **_TOOL}],
        "tool_choice": {"type": "function", "name": "look"},
        "stream": True,
    },
)
COUNT = ({"model": "octet", "messages": [{"role": "user", "content": "x"}]},)
OWN = (
    {"prompt": "sort", "max_tokens": 8, "temperature": 0.5, "stop": "x", "metadata": {"a": "b"}, "session_id": "s"},
    {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [_TOOL],
        "tool_choice": {"name": "look"},
        "priority": 3,
        "timeout_ms": 1000,
        "force_specialists": ["build"],
    },
    {"prompt": "x", "structure": {"regex": "a+"}},
)
_KNOB = ({"name": "breaker.floor", "value": 0.5, "who": "ann", "why": "try"},)
_HEADERS = (
    b"host: 127.0.0.1:8051\norigin: http://127.0.0.1:8051\nsec-fetch-site: same-origin",
    b"host: [::1]:8051\nauthorization: Bearer octet_key",
    b"host: localhost\nx-api-key: octet_key",
)
_TRACES = (
    b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\nrojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
    b"01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more\n",
)


def _validate_requests(order: Callable[[dict[str, Any], str], Any]) -> Callable[[bytes], object]:
    """Return a parser that validates every request in an HTTP body, as the routes do."""

    def asked(raw: bytes) -> object:
        made = order(parse_object(raw), "id")
        return [new_validator().validate(request, None, None) for request in made.requests]

    return asked


def _make_responses_request(body: dict[str, Any], request_id: str) -> Any:
    """Parse as the endpoint does, except that references have no items."""
    asked = read_responses_request(body)
    given = input_items(asked)
    for item in given:
        if isinstance(item, ItemReference):
            referenced_response(item.id)
    items = [item for item in given if not isinstance(item, ItemReference)]
    return make_responses_request(asked, request_id, number_items(items, f"resp_{request_id}"))


def _validate_infer_request(raw: bytes) -> object:
    return new_validator().validate(parse_infer_request(parse_object(raw)), None, None)


def _parse_knob_change(raw: bytes) -> object:
    ask = OPERATOR_CHANGES["set_knob"].to_wire(parse_object(raw), {})
    return operator_pb2.SetKnobRequest.FromString(ask.SerializeToString())


def _headers(raw: bytes) -> list[tuple[bytes, bytes]]:
    pairs = (line.partition(b":") for line in raw.split(b"\n"))
    return [(name.strip().lower(), value.strip()) for name, _, value in pairs]


def _check_page_origin(raw: bytes) -> None:
    scope = {"type": "http", "method": "POST", "headers": _headers(raw), "server": ("127.0.0.1", 8051)}
    check_same_origin(scope, has_keys=False)


def _receive_trace(raw: bytes) -> object:
    header, _, state = raw.decode("latin-1").partition("\n")
    parse_traceparent(header)
    return Tracer(lambda num_bytes: b"\1" * num_bytes, 0.5).receive(header, state)


def _body(name: str, parse: Callable[[bytes], object], bodies: tuple[Mapping[str, Any], ...]) -> Parser:
    return Parser(name, parse, (ApiError, Refusal), tuple(json.dumps(body).encode() for body in bodies), "json")


PARSERS = [
    _body("http.chat", _validate_requests(parse_chat_request), CHAT),
    _body("http.completions", _validate_requests(parse_completion_request), COMPLETION),
    _body("http.responses", _validate_requests(_make_responses_request), RESPONSES),
    _body("http.messages", _validate_requests(parse_message_request), MESSAGES),
    _body("http.count_tokens", _validate_requests(parse_count_request), COUNT),
    _body("http.infer", _validate_infer_request, OWN),
    _body("http.knob", _parse_knob_change, _KNOB),
    Parser(
        "http.own_page",
        _check_page_origin,
        (ApiError,),
        _HEADERS,
        "text",
        words=(b"host: ", b"origin: ", b"\n", b"[", b"]", b"@"),
    ),
    Parser(
        "http.key", lambda raw: extract_key(_headers(raw)), (Refusal,), _HEADERS[1:], "text", words=(b"Bearer ", b"\n")
    ),
    Parser("http.trace", _receive_trace, (), _TRACES, "text", words=(b"-", b"=", b",", b"0" * 32)),
]
