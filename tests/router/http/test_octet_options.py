"""What only Octet knows is read alike, whatever dialect it stands in."""

from typing import Any

import pytest

from octet.v1 import inference_pb2 as wire
from router.http.anthropic_messages import message_order
from router.http.fault import Fault
from router.http.openai_chat import chat_order
from router.http.order import Order
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
DIALECTS = {"openai": chat_order, "anthropic": message_order}


def order(dialect: str, own: dict[str, Any], **fields: Any) -> Order:
    body = {"model": "octet/writer", "messages": HELLO, "max_tokens": 8, "octet": own, **fields}
    return DIALECTS[dialect](body, "id")


def test_the_same_options_are_the_same_request() -> None:
    openai, anthropic = (order(dialect, OPTIONS) for dialect in DIALECTS)
    assert openai.requests == anthropic.requests and openai.receipt and anthropic.receipt
    (asked,) = openai.requests
    assert (asked.intent, asked.priority, asked.timeout_ms, asked.session_id) == ("explain", 3, 900, "s")
    assert asked.first_token_timeout_ms == 300
    assert (list(asked.exclude_specialists), list(asked.adapters)) == (["poet"], ["a", "b"])
    assert asked.structure == wire.Structure(regex="[a-c]+")
    fields = ("intent", "priority", "timeout_ms", "exclude_specialists", "adapters", "session_id", "structure.regex")
    names, others = openai.names(), anthropic.names()
    for name in (*fields, "first_token_timeout_ms"):
        assert names[name] == others[name] and names[name].startswith("octet.")


def test_a_seed_stands_where_the_dialect_has_no_other_place_for_it() -> None:
    assert order("anthropic", {"seed": 3}).requests == order("openai", {}, seed=3).requests
    with pytest.raises(Fault, match=r"octet\.seed"):
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
def test_the_same_mistakes_are_refused_alike(dialect: str, own: dict[str, Any], param: str) -> None:
    with pytest.raises(Fault) as caught:
        order(dialect, own)
    assert caught.value.param == param
