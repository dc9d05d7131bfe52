"""What a body in OpenAI's dialect asks for, in Octet's words: also what OpenAI has no name for."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.v1 import inference_pb2 as wire
from router.http.fault import Fault
from router.http.openai_chat import chat_order
from router.http.openai_completion import completion_order
from router.http.own_body import request_of
from tests.router.http.harness import HELLO

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
    (request,) = chat_order({"model": "octet/writer", "messages": HELLO, **fields}, "").requests
    return request


@given(EXTRAS)
def test_what_the_engine_has_is_asked_for_by_the_same_names(extras: dict[str, Any]) -> None:
    own = request_of({"messages": HELLO, "force_specialists": "writer", **extras})
    assert ordered(**extras) == own
    body = {"model": "octet/writer", "prompt": "hello", **extras}
    (completion,) = completion_order(body, "").requests
    assert completion == request_of({"prompt": "hello", "force_specialists": "writer", **extras})


def test_values_that_ask_for_what_is_there_are_taken() -> None:
    assert ordered(top_k=-1).sampling == wire.Sampling(top_k=0)
    assert ordered(top_p=0, temperature=0.7).sampling == wire.Sampling(temperature=0)
    assert ordered(verbosity="medium") == ordered()
    with pytest.raises(Fault, match="verbosity"):
        ordered(verbosity="low")


@pytest.mark.parametrize(
    "key", ["guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"]
)
def test_forms_by_other_names_are_refused_with_where_to_say_them(key: str) -> None:
    for order, prompt in ((chat_order, {"messages": HELLO}), (completion_order, {"prompt": "x"})):
        with pytest.raises(Fault, match=r"response_format or octet\.structure") as caught:
            order({"model": "octet", **prompt, key: {"type": "object"}}, "")
        assert (caught.value.param, caught.value.code) == (key, "unsupported_parameter")
        order({"model": "octet", **prompt, key: None, "of_no_vendor": 1}, "")


def test_a_cache_key_names_a_conversation_unless_a_session_does() -> None:
    assert dict(ordered(prompt_cache_key="k", user="u").metadata) == {"session_id": "k"}
    both = {"prompt_cache_key": "k", "metadata": {"session_id": "s"}}
    assert dict(ordered(**both).metadata) == {"session_id": "s"}
    body = {"model": "octet", "messages": HELLO}
    assert chat_order({**body, "prompt_cache_key": "k"}, "").names()["metadata"] == "prompt_cache_key"
    assert chat_order({**body, **both}, "").names()["metadata"] == "metadata.session_id"
