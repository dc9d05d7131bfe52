"""The request to a replica contains everything from the caller and from the decision."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.config.ensemble import SpecialistConfig
from octet.v1 import inference_pb2 as wire
from router.request import Request
from router.routing.classifier.base import Distribution
from router.routing.policy import RoutingPolicy
from tests.router.routing.ensembles import DIGEST, ENSEMBLE, INTENTS, NAMES, opinion, opinions
from tests.router.routing.sample_requests import new_validator, replica_request, sensible, validated_request

POLICY = RoutingPolicy(ENSEMBLE)
ASKS = sensible(NAMES, INTENTS).map(lambda message: new_validator().validate(message, None, None))
SURE = opinion(algo=0.8, debug=0.15)


@given(ASKS, opinions(), st.floats(0, 86_400), st.booleans())
def test_the_replicas_request_matches_the_decision(
    ask: Request, thought: Distribution, seconds_left: float, second: bool
) -> None:
    decision = POLICY.decide(ask, thought, DIGEST)
    name = decision.second_choice if second else decision.primary
    if not name:
        return
    specialist = ENSEMBLE.specialist(name)
    request = replica_request(ask, decision, specialist, ("tuned", "terse"), seconds_left)
    assert request.request_id == ask.request_id and request.tenant_salt == ask.tenant_salt
    assert request.sampling == decision.sampling
    assert request.HasField("structure") == (ask.structure is not None)
    assert ask.structure is None or request.structure == ask.structure
    assert request.priority == ask.priority and tuple(request.stop) == ask.stop
    assert request.HasField("seed") == (ask.seed is not None) and (ask.seed or 0) == request.seed
    assert 1 <= request.timeout_ms <= max(1, seconds_left * 1000)
    hurried = replace(ask, first_deadline=ask.deadline - 3.0)
    soon = replica_request(hurried, decision, specialist, (), seconds_left).first_token_timeout_ms
    assert 1 <= soon <= max(1, (seconds_left - 3.0) * 1000 + 1e-6) and not request.HasField("first_token_timeout_ms")
    assert request.max_tokens <= decision.max_tokens
    assert request.max_tokens <= (specialist.context or request.max_tokens)
    assert not request.HasField("min_tokens") or request.min_tokens <= request.max_tokens
    assert tuple(request.adapters) == ("tuned", "terse")
    assert _everything_said(request) == specialist.system + "".join(turn.content for turn in ask.messages)


def _everything_said(request: Any) -> str:
    """Return all text of the request, without the separator that the router adds between two system prompts."""
    first, *rest = (message.content for message in request.chat.messages)
    for specialist in ENSEMBLE.specialists:
        if specialist.system and first.startswith(f"{specialist.system}\n\n"):
            first = first.replace("\n\n", "", 1)
    return "".join((first, *rest))


@pytest.mark.parametrize(
    ("own", "messages"),
    [
        ("Be brief.", [("system", "You know algorithms.\n\nBe brief."), ("user", "why?")]),
        (None, [("system", "You know algorithms."), ("user", "why?")]),
    ],
)
def test_the_specialists_system_prompt_comes_before_the_callers(
    own: str | None, messages: list[tuple[str, str]]
) -> None:
    said = [wire.Message(role="user", content="why?")]
    if own is not None:
        said.insert(0, wire.Message(role="system", content=own))
    ask = validated_request(messages=said)
    request = replica_request(ask, POLICY.decide(ask, SURE, DIGEST), ENSEMBLE.specialist("algo"), (), 1.0)
    assert [(message.role, message.content) for message in request.chat.messages] == messages


def test_without_a_system_prompt_the_conversation_is_unchanged() -> None:
    ask = validated_request(prompt="{x}", body="data")
    request = replica_request(ask, POLICY.decide(ask, SURE, DIGEST), SpecialistConfig("stl"), (), 1.0)
    assert [(message.role, message.content) for message in request.chat.messages] == [("user", "{x}\n\ndata")]


def test_the_second_choice_has_its_own_system_prompt() -> None:
    ask = validated_request()
    decision = POLICY.decide(ask, SURE, DIGEST)
    assert (decision.primary, decision.second_choice) == ("algo", "debug")
    first, second = (replica_request(ask, decision, ENSEMBLE.specialist(name), (), 1.0) for name in ("algo", "debug"))
    assert (first.max_tokens, second.max_tokens) == (2048, 2048)
    assert second.chat.messages[0].content == "You find bugs."
    short = replica_request(ask, decision, ENSEMBLE.specialist("build"), (), 1.0)
    assert short.max_tokens == 300
