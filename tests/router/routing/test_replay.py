"""The same request, configuration and classifier give the same decision. A replay names every difference."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from octet.config.ensemble import REJECT, Ensemble
from octet.v1 import inference_pb2 as wire
from router.receipts import ReceiptDraft
from router.routing.classifier.base import Distribution
from router.routing.policy import RoutingPolicy
from router.routing.replay import replay
from tests.router.routing.ensembles import (
    DIGEST,
    ENSEMBLE,
    ENSEMBLES,
    INTENTS,
    NAMES,
    FixedOpinions,
    opinion,
    opinions,
)
from tests.router.routing.sample_requests import new_validator, sensible

REQUESTS = sensible(NAMES, INTENTS)
THOUGHT = opinion(stl=0.6, algo=0.3)
PLAIN = wire.InferRequest(prompt="explain iterators")


class FixedClassifier:
    """A classifier with a fixed result, for replay."""

    labels = NAMES

    def __init__(self, thought: Distribution, digest: str = DIGEST) -> None:
        self._thought = thought
        self.digest = digest

    def classify(self, texts: Sequence[str]) -> list[Distribution]:
        return [self._thought] * len(texts)


def receipt_of(message: wire.InferRequest, ensemble: Ensemble, thought: Distribution | None) -> wire.Receipt:
    """Return the receipt that a router would write for `message`."""
    ask = new_validator().validate(message, None, None)
    draft = ReceiptDraft(ask, ask.arrival, 0)
    draft.decided(asyncio.run(RoutingPolicy(ensemble).classify_and_decide(ask, FixedOpinions(thought))), ask.arrival)
    sent: wire.Receipt = wire.Receipt.FromString(draft.to_wire().SerializeToString())
    return sent


@given(REQUESTS, ENSEMBLES, opinions(), st.booleans())
@example(
    wire.InferRequest(prompt="Write a thread pool.", exclude_specialists=["algo"], adapters=["a"], max_experts=1),
    replace(ENSEMBLE, default="build"),
    Distribution(((REJECT, 1.0),)),
    True,
)
def test_a_replayed_decision_is_the_same(
    message: wire.InferRequest, ensemble: Ensemble, thought: Distribution, silent: bool
) -> None:
    receipt = receipt_of(message, ensemble, None if silent else thought)
    sent = wire.InferRequest.FromString(message.SerializeToString())
    assert replay(receipt, sent, RoutingPolicy(ensemble), FixedClassifier(thought)) == []


@pytest.mark.parametrize(
    ("changed", "noticed"),
    [
        (wire.InferRequest(prompt="explain iterators!"), "request_digest"),
        (wire.InferRequest(prompt="explain iterators", force_specialists=["stl"]), "source"),
        (wire.InferRequest(prompt="explain iterators", max_tokens=3), "max_tokens"),
        (wire.InferRequest(prompt="explain iterators", sampling=wire.Sampling(temperature=0)), "sampling"),
        (wire.InferRequest(prompt="explain iterators", exclude_specialists=["algo"]), "distribution"),
    ],
)
def test_another_request_is_noticed(changed: wire.InferRequest, noticed: str) -> None:
    differences = replay(
        receipt_of(PLAIN, ENSEMBLE, THOUGHT), changed, RoutingPolicy(ENSEMBLE), FixedClassifier(THOUGHT)
    )
    names = {line.partition(":")[0] for line in differences}
    assert {noticed, "request_digest"} <= names and "config_digest" not in names


def test_another_configuration_is_noticed() -> None:
    other = RoutingPolicy(replace(ENSEMBLE, default="algo"))
    differences = replay(receipt_of(PLAIN, ENSEMBLE, THOUGHT), PLAIN, other, FixedClassifier(THOUGHT))
    assert [line.partition(":")[0] for line in differences] == ["config_digest"]


def test_another_classifier_is_noticed() -> None:
    receipt = receipt_of(PLAIN, ENSEMBLE, THOUGHT)
    renamed = replay(receipt, PLAIN, RoutingPolicy(ENSEMBLE), FixedClassifier(THOUGHT, "e" * 64))
    assert {line.partition(":")[0] for line in renamed} == {"classifier_digest", "decided_by"}
    rethought = replay(receipt, PLAIN, RoutingPolicy(ENSEMBLE), FixedClassifier(opinion(stl=0.6, algo=0.31)))
    assert {line.partition(":")[0] for line in rethought} == {"distribution", "why"}


@given(REQUESTS, opinions(), opinions())
def test_replay_notices_another_distribution(
    message: wire.InferRequest, before: Distribution, after: Distribution
) -> None:
    receipt = receipt_of(message, ENSEMBLE, before)
    differences = replay(receipt, message, RoutingPolicy(ENSEMBLE), FixedClassifier(after))
    again = receipt_of(message, ENSEMBLE, after)
    assert bool(differences) == (receipt.decision != again.decision)
