"""Bodies of /v1/responses: the same conversation as in a chat, and one clear error for everything else."""

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from octet.v1 import inference_pb2 as wire
from router.api.http.body import parse_object
from router.api.http.errors import ApiError
from router.api.http.openai_requests import parse_chat_request
from router.api.http.responses_requests import (
    ItemReference,
    input_items,
    make_responses_request,
    number_items,
    read_responses_request,
)

ASKED: dict[str, Any] = {"model": "octet/writer", "input": "hello"}


def parse(**body: Any) -> wire.InferRequest:
    asked = read_responses_request(parse_object(json.dumps({**ASKED, **body}).encode()))
    items = [item for item in input_items(asked) if not isinstance(item, ItemReference)]
    (request,) = make_responses_request(asked, "id", items).requests
    return request


def refused(**body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(**body)
    assert caught.value.status in (400, 404)
    return caught.value


texts = st.text("ab \n", max_size=6)
calls = st.lists(st.tuples(st.uuids().map(str), st.sampled_from(["look", "go"]), st.just('{"at": 1}')), max_size=3)
turns = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["user", "system", "developer"]), texts, st.just([])),
        st.tuples(st.just("assistant"), texts, calls),
        st.tuples(st.just("assistant"), st.none(), calls.filter(bool)),
    ),
    min_size=1,
    max_size=6,
)
"""The turns of a conversation: role, text and calls. Every call gets a result."""


def is_one_turn(one: Any, two: Any) -> bool:
    """Whether the items of two turns of the assistant cannot be told from those of one."""
    return bool(one[0] == two[0] == "assistant" and not one[2] and two[1] is None)


@given(turns, st.booleans(), st.booleans())
def test_conversation_is_the_same_as_in_a_chat(
    given_turns: list[tuple[str, str | None, list[tuple[str, str, str]]]], in_parts: bool, has_instructions: bool
) -> None:
    assume(not any(map(is_one_turn, given_turns, given_turns[1:])))
    messages: list[Any] = [{"role": "system", "content": "Be short."}] if has_instructions else []
    items: list[Any] = []
    for role, text, made in given_turns:
        kind = "output_text" if role == "assistant" else "input_text"
        message: dict[str, Any] = {"role": role, "content": text}
        if text is not None:
            items.append({**message, "content": [{"type": kind, "text": text}]} if in_parts else message)
        if made:
            message["tool_calls"] = [
                {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
                for id_, name, arguments in made
            ]
        messages.append(message)
        items.append({"type": "reasoning", "id": "rs", "summary": []})
        for id_, name, arguments in made:
            items.append({"type": "function_call", "call_id": id_, "name": name, "arguments": arguments})
        for id_, _, _ in made:
            messages.append({"role": "tool", "tool_call_id": id_, "content": "so"})
            items.append({"type": "function_call_output", "call_id": id_, "output": "so"})
    chat = parse_chat_request({"model": "octet/writer", "messages": messages}, "id").requests[0]
    found = parse(input=items, **({"instructions": "Be short."} if has_instructions else {}))
    assert found == chat

    asked = read_responses_request({**ASKED, "input": items})
    stored = number_items([item for item in input_items(asked) if not isinstance(item, ItemReference)], "resp_x")
    (again,) = make_responses_request(read_responses_request(dict(ASKED)), "id", stored).requests
    assert list(again.messages) == list(found.messages)[has_instructions:], "items must survive being stored"


def test_options_are_the_same_as_in_a_chat() -> None:
    parameters = {"type": "object", "properties": {"at": {"type": "integer"}}}
    function = {"name": "look", "description": "Looks.", "parameters": parameters, "strict": True}
    same = {"temperature": 0.5, "top_p": 0.5, "seed": 3, "stop": ["x"], "prompt_cache_key": "key", "user": "ann"}
    same |= {"parallel_tool_calls": False, "octet": {"priority": 3, "timeout_ms": 1000}}
    chat = parse_chat_request(
        {
            **same,
            **{"model": "octet/writer", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 9},
            **{"tools": [{"type": "function", "function": function}], "logprobs": True, "top_logprobs": 2},
            "tool_choice": {"type": "function", "function": {"name": "look"}},
        },
        "id",
    ).requests[0]
    more: Any = {"max_output_tokens": 9, "tools": [{"type": "function", **function}], "top_logprobs": 2}
    found = parse(
        **{**same, "user": None}, safety_identifier="ann", tool_choice={"type": "function", "name": "look"}, **more
    )
    found.metadata["session_id"] = "key"  # set by the endpoint, which knows the session of the previous response
    assert found == chat


FORMATS = [
    ({"type": "text"}, None),
    ({"type": "json_object"}, wire.Structure(json_object=True)),
    ({"type": "json_schema", "name": "x", "schema": {"type": "null"}}, wire.Structure(json_schema='{"type": "null"}')),
]


@pytest.mark.parametrize(("form", "structure"), FORMATS)
def test_text_format_becomes_the_structure(form: Any, structure: wire.Structure | None) -> None:
    request = parse(text={"format": form, "verbosity": "low"}, reasoning={"effort": "high"})
    assert (request.structure if request.HasField("structure") else None) == structure


CALL = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"background": True}, "background", "/v1/jobs"),
    ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "instructions"),
    ({"truncation": "auto"}, "truncation", "too long"),
    ({"context_management": [{}]}, "context_management", "dropped"),
    ({"moderation": {"model": "x"}}, "moderation", "moderate"),
    ({"max_tool_calls": 3}, "max_tool_calls", "no tools of its own"),
    ({"max_tokens": 3}, "max_tokens", "max_output_tokens"),
    ({"max_completion_tokens": 3}, "max_completion_tokens", "max_output_tokens"),
    ({"messages": []}, "messages", "input"),
    ({"response_format": {"type": "text"}}, "response_format", r"text\.format"),
    ({"n": 2}, "n", "one answer"),
    ({"service_tier": "flex"}, "service_tier", "priority"),
    ({"guided_json": {}}, "guided_json", r"text\.format"),
    ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation", "padded"),
    ({"include": ["file_search_call.results"]}, "include[0]", "no tools of its own"),
    *(
        ({"tools": [{"type": kind}]}, "tools[0].type", kind)
        for kind in ("web_search", "file_search", "code_interpreter", "mcp", "image_generation", "custom")
    ),
    ({"tool_choice": {"type": "web_search"}}, "tool_choice.type", "only a function"),
    ({"tool_choice": "any"}, "tool_choice", "auto"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type", "text only"),
    ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type", "text only"),
    ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type", "web_search_call"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "one of user"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id", "missing"),
    ({"input": [{**CALL, "arguments": {}}]}, "input[0].arguments", "text"),
    ({"input": 3}, "input", "text or a list"),
    ({"input": None}, "input", "text or a list"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "missing"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", "one of json_object"),
    ({"metadata": {"a": 1}}, "metadata.a", "text"),
    ({"metadata": {str(number): "" for number in range(17)}}, "metadata", "at most 16"),
    ({"metadata": {"k" * 65: ""}}, "metadata", "64"),
    ({"metadata": {"k": "v" * 513}}, "metadata", "512"),
    ({"parallel_tool_calls": False}, "parallel_tool_calls", "no tools"),
    ({"octet": {"colour": 1}}, "octet.colour", "one of"),
    ({"previous_response_id": 3}, "previous_response_id", "text"),
]


@pytest.mark.parametrize(("body", "param", "why"), REFUSED, ids=lambda value: value if isinstance(value, str) else None)
def test_refusals_name_the_field_and_the_reason(body: Any, param: str, why: str) -> None:
    error = refused(**body)
    assert error.param == param
    with pytest.raises(ApiError, match=why):
        raise error


def test_unknown_model_is_refused_as_in_a_chat() -> None:
    assert refused(model="gpt-4o").code == "model_not_found"


@pytest.mark.parametrize(
    "body",
    [
        {"reasoning": {"effort": "high", "summary": "auto"}, "text": {"verbosity": "high"}},
        {"include": ["reasoning.encrypted_content"], "truncation": "disabled", "background": False, "n": 1},
        {"prompt_cache_retention": "24h", "service_tier": "auto", "something_new": {"x": 1}, "tools": None},
        {"metadata": {"a": None}, "stream_options": {"include_obfuscation": False}, "conversation": None},
    ],
)
def test_fields_without_effect_are_accepted(body: Any) -> None:
    assert parse(**body) == parse()


def test_text_after_a_call_belongs_to_its_turn() -> None:
    answers = [{"role": "assistant", "content": text} for text in ("one ", "two")]
    result = {"type": "function_call_output", "call_id": "c", "output": "so"}
    _, turn, tool = parse(input=[{"role": "user", "content": "x"}, answers[0], CALL, answers[1], result]).messages
    assert (turn.content, len(turn.tool_calls), tool.tool_call_id) == ("one two", 1, "c")
