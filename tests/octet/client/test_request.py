"""Every option sets its field, and invalid values are refused before sending."""

import re
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet import Client, InvalidRequest
from octet.client.options import Options
from octet.client.request import prepare_request
from octet.v1 import inference_pb2 as wire
from tests.octet.client.server import scripted

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
EXAMPLES: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hello"}],
    "template": "{prompt}: {body}",
    "body": "int main() {}",
    "intent": "build-fix",
    "force": ["stl", "template"],
    "exclude": ["debug"],
    "adapters": ["one", "two"],
    "max_experts": 3,
    "temperature": 0.5,
    "top_k": 40,
    "top_p": 0.9,
    "min_p": 0.1,
    "typical_p": 0.8,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.2,
    "frequency_penalty": 0.3,
    "logit_bias": {7: -1.0},
    "logprobs": 2,
    "seed": 11,
    "max_tokens": 64,
    "min_tokens": 2,
    "stop": ["\n"],
    "ignore_eos": True,
    "structure": {"type": "object"},
    "tools": [{"name": "find", "parameters": {"type": "object"}}],
    "tool_choice": "required",
    "validate": True,
    "context_size": 512,
    "draft_window": 4,
    "priority": 7,
    "timeout": 20.0,
    "first_token_timeout": 2.0,
    "wait": 1.0,
    "session": "s",
    "user": "u",
    "metadata": {"session_id": "m"},
    "tenant_salt": b"salt",
    "ticket": "T",
    "request_id": "mine",
    "trace": TRACE,
}
EVERYTHING = wire.InferRequest(
    request_id="mine",
    prompt="why?",
    template="{prompt}: {body}",
    body="int main() {}",
    messages=[wire.Message(role="user", content="hello")],
    intent="build-fix",
    force_specialists=["stl", "template"],
    exclude_specialists=["debug"],
    adapters=["one", "two"],
    max_experts=3,
    sampling=wire.Sampling(
        temperature=0.5,
        top_k=40,
        top_p=0.9,
        min_p=0.1,
        typical_p=0.8,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        logit_bias=[wire.LogitBias(token=7, bias=-1.0)],
        num_logprobs=2,
    ),
    seed=11,
    max_tokens=64,
    min_tokens=2,
    stop=["\n"],
    ignore_eos=True,
    structure=wire.Structure(json_schema='{"type": "object"}'),
    tools=[wire.Tool(name="find", parameters='{"type": "object"}')],
    tool_choice=wire.ToolChoice(mode=wire.ToolChoice.REQUIRED),
    validate=True,
    context_size=512,
    draft_window=4,
    priority=7,
    session_id="s",
    user_id="u",
    metadata={"session_id": "m"},
    tenant_salt=b"salt",
    ticket="T",
)


def test_every_option_sets_its_field() -> None:
    assert set(EXAMPLES) == set(get_type_hints(Options))
    prepared = prepare_request("why?", EXAMPLES)
    assert prepared.message == EVERYTHING
    assert (prepared.timeouts, prepared.metadata) == ((20.0, 2.0, 1.0), (("traceparent", TRACE),))
    unset = set(wire.InferRequest.DESCRIPTOR.fields_by_name) - {field.name for field, _ in EVERYTHING.ListFields()}
    own = {"timeout_ms", "first_token_timeout_ms", "wait_ms", "embed"}
    assert unset == own, "every other field must be set by an option"


@given(st.sets(st.sampled_from(sorted(EXAMPLES))))
def test_omitted_and_none_options_are_unset(given_names: set[str]) -> None:
    some = {name: EXAMPLES[name] for name in given_names}
    padded = {**dict.fromkeys(EXAMPLES), **some}
    assert prepare_request(None, some).message == prepare_request(None, padded).message
    whole = {field.name for field, _ in EVERYTHING.ListFields()} - {"prompt"}
    assert {field.name for field, _ in prepare_request(None, some).message.ListFields()} <= whole


def test_single_name_becomes_a_list() -> None:
    message = prepare_request("x", {"force": "stl", "stop": "\n\n", "adapters": "one"}).message
    assert (list(message.force_specialists), list(message.stop), list(message.adapters)) == (["stl"], ["\n\n"], ["one"])


@pytest.mark.parametrize(
    "name", ["force_specialists", "session_id", "sampling", "timeout_ms", "num_logprobs", "temprature"]
)
def test_unknown_option_is_a_type_error(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        prepare_request("x", {name: 1})


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"body": "\ud800"}, "body"),
        ({"intent": "\udcff"}, "intent"),
        ({"messages": [{"role": "user", "content": "a\ud800"}]}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": ["hello"]}, "messages"),
        ({"force": ["stl", 3]}, "force"),
        ({"force": 3}, "force"),
        ({"seed": 2**63}, "seed"),
        ({"seed": "1"}, "seed"),
        ({"temperature": "hot"}, "temperature"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"tenant_salt": "\ud800"}, "tenant_salt"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1.0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
        ({"timeout": "20"}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"trace": "00-abc"}, "trace"),
        ({"trace": 5}, "trace"),
    ],
)
def test_unsendable_option_is_refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest, match=field) as caught:
        prepare_request("x", options)
    assert caught.value.field == field and caught.value.reason == "invalid_field"
    assert caught.value.limit and caught.value.value and len(str(caught.value)) < 300


@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - {"timeout", "trace"}))
def test_every_refused_option_names_the_expected_type(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        prepare_request("x", {name: object()})
    assert re.match(
        r"text|bytes|a number|a (non-negative )?\d\d-bit integer|true or false|a list of|a mapping", caught.value.limit
    )


@given(st.text(st.characters(), max_size=20))
def test_text_is_sent_unchanged_or_refused(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        with pytest.raises(InvalidRequest, match="prompt must be valid UTF-8"):
            prepare_request(text, {})
        with pytest.raises(InvalidRequest), Client() as client:
            client.receipt(text)
    else:
        message = wire.InferRequest.FromString(prepare_request(text, {}).message.SerializeToString())
        assert message.prompt == text


@given(st.floats(0.0001, 10**9))
def test_any_timeout_can_be_sent(seconds: float) -> None:
    prepared = prepare_request("x", {"timeout": seconds, "first_token_timeout": seconds})
    attempt: Any = prepared.message_for(prepared.timeouts)
    assert attempt.timeout_ms >= seconds * 1000 and attempt.first_token_timeout_ms >= seconds * 1000


def test_trace_is_sent_and_long_timeouts_work() -> None:
    with scripted() as script, Client(script.address) as client:
        with client.stream("x", trace=TRACE, timeout=10**9) as answer:
            assert len(list(answer)) == 3
        client.infer("x", trace=TRACE)
        client.route("x", trace=TRACE)
    assert [call.metadata["traceparent"] for call in script.calls] == [TRACE] * 3
