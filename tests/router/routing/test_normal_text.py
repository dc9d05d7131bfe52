"""Texts are standardised once, at reception, without changing what they mean, and folded for routing."""

from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.rpc.refusal import Refusal
from octet.v1 import inference_pb2 as wire
from router.request import Request
from router.routing.classifier.base import Distribution
from router.routing.normal_text import fold_unicode, standardize, trim
from router.routing.policy import RoutingPolicy
from router.routing.validation import MAX_ROUTING_CHARS
from tests.router.routing.ensembles import DIGEST, ENSEMBLE, opinion
from tests.router.routing.sample_requests import new_validator

ODD = st.text(st.sampled_from("ab \t\n\r\0\x0b\x85\u00a0\u2028\ufeff\u200b\ufffd\u037eé"), max_size=24)
TEXTS = ODD | st.text(max_size=40)
CODE = "def f():\n    s = 'e\u0301'\n\treturn s\u037e  # \u200b\n\n    x"


@given(TEXTS)
def test_standardising_twice_changes_nothing_more(text: str) -> None:
    for normalize in (standardize, trim):
        once = normalize(text)
        assert normalize(once) == once
    assert standardize(trim(text)) == trim(text)


@given(TEXTS)
def test_only_line_ends_marks_nuls_and_outer_whitespace_change(text: str) -> None:
    plain = standardize(text)
    assert not set(plain) & {"\r", "\0"} and not plain.startswith("\ufeff")
    lines = [each.replace("\0", "\ufffd") for each in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    assert plain == "\n".join(lines).lstrip("\ufeff")
    trimmed = trim(text)
    kept = plain.strip(" \t\n\x0b\x0c\x1c\x1d\x1e\x1f\x85\u00a0\u2028\u2029\ufeff")
    assert kept in trimmed and trimmed in plain
    assert trimmed == trimmed.rstrip() and not trimmed[: len(trimmed) - len(trimmed.lstrip())].count("\n")


HOSTILE = ("\u0300\u0316", "\u0f73", "\uff9e\u0334", "\ufdfa", "\u3316", "\u3316 ", "\u3164", "\uffa0", "a\u0300\u0316")
"""Combining marks, characters that decompose into marks or into many letters, and invisible letters."""


@given(st.text(st.sampled_from("".join(HOSTILE) + "a\uff42\u00a0\u200b"), max_size=200))
def test_folding_hostile_text_twice_changes_nothing_more(text: str) -> None:
    once = fold_unicode(text)
    assert fold_unicode(once) == once
    assert len(once) <= 2 * len(text) and not set(once) & {"\u200b", "\u1160"}


@pytest.mark.parametrize("piece", HOSTILE, ids=ascii)
def test_hostile_text_is_folded_quickly(piece: str) -> None:
    text = (piece * MAX_ROUTING_CHARS)[:MAX_ROUTING_CHARS]
    assert min(fold_seconds(text) for _ in range(3)) < 0.1


def fold_seconds(text: str) -> float:
    began = thread_time()
    fold_unicode(text)
    return thread_time() - began


def test_code_keeps_its_indentation_normal_form_and_invisible_characters() -> None:
    assert trim(CODE) == standardize(CODE) == CODE
    assert trim(f"\ufeff\r\n  \r\n    {CODE}\r\n\r\n") == f"    {CODE}"
    assert trim("a\rb\r\nc\0") == "a\nb\nc\ufffd"


def validated(message: wire.InferRequest) -> Request:
    return new_validator().validate(message, None, None)


def windows(text: str) -> str:
    return "\ufeff\r\n" + text.replace("\n", "\r\n") + " \r\n"


PROMPTS = (
    "undefined reference to `vtable for Shape'\ncollect2: error: ld returned 1 exit status",
    "==1==ERROR: AddressSanitizer: heap-use-after-free on address 0x602000000010\n    #0 0x4 in main a.cpp:3",
    "why does sort reject my iterator?",
)


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("thought", [opinion(stl=0.9), None])
def test_line_ends_and_marks_change_no_routing_and_no_prompt(prompt: str, thought: Distribution | None) -> None:
    policy = RoutingPolicy(ENSEMBLE)
    plain, other = (validated(wire.InferRequest(prompt=each)) for each in (prompt, windows(prompt)))
    assert plain.text == prompt, "normal text stays as it is"
    assert plain.messages == other.messages and plain.content_digest() == other.content_digest()
    assert policy.decide(plain, thought, DIGEST) == policy.decide(other, thought, DIGEST)


def test_every_text_of_a_caller_is_standardised_and_no_answer_of_a_model() -> None:
    request = validated(
        wire.InferRequest(
            messages=[
                wire.Message(role="system", content="\ufeffbe brief \r\n"),
                wire.Message(role="user", content="\r\n  hello \r\n"),
                wire.Message(role="assistant", content="\ufeff an\r\nswer "),
                wire.Message(role="user", content="go on"),
            ]
        )
    )
    assert [each.content for each in request.messages] == ["be brief \n", "  hello", "\ufeff an\r\nswer ", "go on"]
    filled = validated(wire.InferRequest(prompt=" a\r\n", body="\r\n  b\0 ", template="{prompt}\r\n{body}\r\n"))
    assert filled.messages[0].content == " a\n  b\ufffd"


@pytest.mark.parametrize(
    "message",
    [
        wire.InferRequest(prompt="\ufeff \r\n"),
        wire.InferRequest(messages=[wire.Message(role="user", content="\r\n\ufeff")]),
        wire.InferRequest(prompt="\0" * 700_000),
        wire.InferRequest(messages=[wire.Message(role="user", content="\0" * 700_000)]),
    ],
)
def test_a_text_that_becomes_empty_or_too_long_is_refused(message: wire.InferRequest) -> None:
    with pytest.raises(Refusal) as refused:
        validated(message)
    assert refused.value.error.field in ("prompt", "messages")
