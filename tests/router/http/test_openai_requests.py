"""OpenAI request bodies: their conversion, and their errors."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.v1 import inference_pb2 as wire
from router.api.http.errors import ApiError
from router.api.http.openai_requests import parse_chat_request, parse_completion_request
from tests.router.http.harness import HELLO
from tests.router.http.infer_bodies import parse_infer_request

EXTRAS = st.fixed_dictionaries(
    {},
    optional={
        "top_k": st.integers(0, 2**31 - 1),
        "min_p": st.floats(0, 1),
        "repetition_penalty": st.floats(1, 2),
        "min_tokens": st.integers(0, 100),
        "ignore_eos": st.booleans(),
        "top_p": st.floats(0.01, 1),
        "presence_penalty": st.floats(-10, 10),
    },
)


def ordered(**fields: Any) -> wire.InferRequest:
    (request,) = parse_chat_request({"model": "octet/writer", "messages": HELLO, **fields}, "").requests
    return request


@given(EXTRAS)
def test_sampling_fields_have_the_same_names_as_in_infer(extras: dict[str, Any]) -> None:
    own = parse_infer_request({"messages": HELLO, "force_specialists": "writer", **extras})
    assert ordered(**extras) == own
    body = {"model": "octet/writer", "prompt": "hello", **extras}
    (completion,) = parse_completion_request(body, "").requests
    assert completion == parse_infer_request({"prompt": "hello", "force_specialists": "writer", **extras})


def test_values_without_effect_are_accepted() -> None:
    assert ordered(top_k=-1).sampling == wire.Sampling(top_k=0)
    assert ordered(top_p=0, temperature=0.7).sampling == wire.Sampling(temperature=0)
    for ignored in ({"verbosity": "low"}, {"reasoning_effort": "high"}, {"store": True}, {"store": False}):
        assert ordered(**ignored) == ordered()
    assert ordered(messages=[{**HELLO[0], "name": "ann"}]) == ordered()


@pytest.mark.parametrize(
    "key", ["guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"]
)
def test_guided_fields_are_refused_with_the_supported_field(key: str) -> None:
    for order, prompt in ((parse_chat_request, {"messages": HELLO}), (parse_completion_request, {"prompt": "x"})):
        with pytest.raises(ApiError, match=r"response_format or octet\.structure") as caught:
            order({"model": "octet", **prompt, key: {"type": "object"}}, "")
        assert (caught.value.param, caught.value.code) == (key, "unsupported_parameter")
        order({"model": "octet", **prompt, key: None, "of_no_vendor": 1}, "")


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "txt", "text": "x"}]}]}, "text"),
        ({"tools": [{"type": "fn"}]}, "function"),
        ({"response_format": {"type": "xml"}}, "one of json_object, json_schema, text"),
    ],
)
def test_limit_is_the_allowed_value_or_a_list_of_several(fields: dict[str, Any], limit: str) -> None:
    with pytest.raises(ApiError, match=f"type must be {limit}, got") as caught:
        ordered(**fields)
    assert caught.value.body().limit == limit


def test_prompt_cache_key_is_the_session_unless_metadata_has_one() -> None:
    assert dict(ordered(prompt_cache_key="k", user="u").metadata) == {"session_id": "k"}
    both = {"prompt_cache_key": "k", "metadata": {"session_id": "s"}}
    assert dict(ordered(**both).metadata) == {"session_id": "s"}
    body = {"model": "octet", "messages": HELLO}
    assert parse_chat_request({**body, "prompt_cache_key": "k"}, "").field_names()["metadata"] == "prompt_cache_key"
    assert parse_chat_request({**body, **both}, "").field_names()["metadata"] == "metadata.session_id"


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"octet": {"intnt": "x"}}, "invalid_field", "octet.intnt"),
        ({"octet": {"structure": {"form": 1}}}, "invalid_field", "octet.structure"),
        ({"messages": None}, "invalid_field", "messages"),
        ({"messages": [{"role": "function", "content": "x"}]}, "unsupported_parameter", "messages[0].role"),
        ({"messages": [{"role": "king", "content": "x"}]}, "invalid_field", "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "x"}]}]}, "invalid_field", "messages[0].content[0].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "unsupported_parameter",
            "messages[0].content[0].type",
        ),
        ({"modalities": []}, "unsupported_parameter", "modalities"),
        ({"store": "yes"}, "invalid_field", "store"),
        ({"logit_bias": {"x": "y"}}, "invalid_field", "logit_bias"),
    ],
)
def test_error_codes_of_invalid_and_unsupported_fields(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        ordered(**fields)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, code, param)
