"""The `octet` object means the same in every vendor's API."""

from typing import Any

import pytest

from octet.v1 import inference_pb2 as wire
from router.api.http.anthropic import parse_message_request
from router.api.http.completions import ApiRequest
from router.api.http.errors import ApiError
from router.api.http.openai_requests import parse_chat_request
from tests.router.http.harness import HELLO

OPTIONS: dict[str, Any] = {
    "intent": "explain",
    "priority": 3,
    "timeout_ms": 900,
    "first_token_timeout_ms": 300,
    "exclude": ["poet"],
    "adapters": ["a", "b"],
    "session_id": "s",
    "receipt": True,
    "structure": {"regex": "[a-c]+"},
}
DIALECTS = {"openai": parse_chat_request, "anthropic": parse_message_request}


def order(dialect: str, own: dict[str, Any], **fields: Any) -> ApiRequest:
    body = {"model": "octet/writer", "messages": HELLO, "max_tokens": 8, "octet": own, **fields}
    return DIALECTS[dialect](body, "id")


def test_octet_options_mean_the_same_in_every_dialect() -> None:
    openai, anthropic = (order(dialect, OPTIONS) for dialect in DIALECTS)
    assert openai.requests == anthropic.requests and openai.include_receipt and anthropic.include_receipt
    (asked,) = openai.requests
    assert (asked.intent, asked.priority, asked.timeout_ms, asked.session_id) == ("explain", 3, 900, "s")
    assert asked.first_token_timeout_ms == 300
    assert (list(asked.exclude_specialists), list(asked.adapters)) == (["poet"], ["a", "b"])
    assert asked.structure == wire.Structure(regex="[a-c]+")
    fields = ("intent", "priority", "timeout_ms", "exclude_specialists", "adapters", "session_id", "structure.regex")
    names, others = openai.field_names(), anthropic.field_names()
    for name in (*fields, "first_token_timeout_ms"):
        assert names[name] == others[name] and names[name].startswith("octet.")


def test_seed_is_an_octet_option_only_for_anthropic() -> None:
    assert order("anthropic", {"seed": 3}).requests == order("openai", {}, seed=3).requests
    with pytest.raises(ApiError, match=r"octet\.seed"):
        order("openai", {"seed": 3})


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("own", "param"),
    [
        ({"prio": 1}, "octet.prio"),
        ({"priority": "high"}, "octet.priority"),
        ({"structure": {"regex": "a", "choice": ["a"]}}, "octet.structure"),
        ({"structure": {}}, "octet.structure"),
        ({"receipt": 1}, "octet.receipt"),
    ],
)
def test_invalid_octet_options_are_refused_in_every_dialect(dialect: str, own: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        order(dialect, own)
    assert caught.value.param == param
