"""By configuration, the bare model of a specialist answers what no specialist fits, and nothing else."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.config.ensemble import Ensemble
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire
from router.receipts import decision_to_wire
from router.request import Request, RoutingDecision
from router.routing.classifier.base import Distribution
from router.routing.dispatch_plan import FleetStatus, plan_dispatch
from router.routing.policy import RoutingPolicy, build_replica_request
from tests.router.routing.ensembles import DIGEST, ENSEMBLE, ENSEMBLES, INTENTS, NAMES, opinion, opinions
from tests.router.routing.sample_requests import new_validator, sensible, validated_request

ASKS = sensible(NAMES, INTENTS).map(lambda message: new_validator().validate(message, None, None))
REJECTED = opinion(stl=0.1)
ENSEMBLE_WITH_BARE = replace(ENSEMBLE, bare="algo")


def decided(ask: Request, ensemble: Ensemble, thought: Distribution | None = REJECTED) -> RoutingDecision:
    ask.decision = RoutingPolicy(ensemble).decide(ask, thought, DIGEST if thought else "")
    return ask.decision


@given(ASKS, opinions() | st.none(), ENSEMBLES, st.sampled_from(NAMES))
def test_only_what_would_be_refused_goes_to_the_bare_model(
    ask: Request, thought: Distribution | None, ensemble: Ensemble, bare: str
) -> None:
    before = decided(ask, replace(ensemble, bare=None), thought)
    after = decided(ask, replace(ensemble, bare=bare), thought)
    if before.primary or bare in ask.exclude or ask.adapters:
        assert replace(after, config_digest="") == replace(before, config_digest="")
        return
    assert (after.source, after.decided_by, after.primary, after.second_choice) == ("bare", "bare", bare, "")
    assert after.adapters == () and after.distribution == before.distribution
    assert before.why in after.why and f"the bare model of {bare}" in after.why


@given(ENSEMBLES, st.sampled_from(NAMES), st.floats(0, 1))
def test_the_bare_model_answers_without_system_prompt_and_adapters(ensemble: Ensemble, bare: str, dice: float) -> None:
    ask = validated_request(prompt="hello", exclude_specialists=[name for name in NAMES if name != bare][:1])
    decided(ask, replace(ensemble, bare=bare, default=None))
    status = FleetStatus.initial(ensemble)
    plan = plan_dispatch(ask, ensemble, status, lambda: dice)
    (candidate,) = plan.candidates
    assert (candidate.specialist, candidate.adapters, candidate.experts) == (bare, (), ())
    assert plan.shadow is None and not plan.sample, "its answers say nothing about the specialist"
    sent = build_replica_request(ask, ensemble.specialist(bare), candidate.adapters, 60.0)
    assert [each.role for each in sent.chat.messages] == ["user"] and not sent.adapters


def test_a_demoted_specialist_lends_no_bare_model() -> None:
    ensemble = replace(ENSEMBLE_WITH_BARE, default=None)
    ask = validated_request(prompt="hello")
    decided(ask, ensemble)
    status = FleetStatus.initial(ensemble)
    demoted = replace(status.specialists["algo"], serves=False, correctness="shadow_only", reason="demoted")
    status = replace(status, specialists={**status.specialists, "algo": demoted})
    plan = plan_dispatch(ask, ensemble, status, lambda: 0.0)
    assert plan.refusal is not None and plan.refusal.error.reason == error_pb2.ERROR_REASON_DEMOTED
    assert not plan.candidates


def test_the_receipt_names_the_source() -> None:
    decision = decided(validated_request(prompt="hello"), ENSEMBLE_WITH_BARE, None)
    recorded = decision_to_wire(decision)
    assert recorded.source == wire.DECISION_SOURCE_BARE and "classifier was unavailable" in recorded.why


@pytest.mark.parametrize("fields", [{"exclude_specialists": ["algo"]}, {"adapters": ["fast"]}])
def test_a_request_that_the_bare_model_cannot_answer_stays_unrouted(fields: dict[str, list[str]]) -> None:
    decision = decided(validated_request(prompt="hello", **fields), ENSEMBLE_WITH_BARE)
    assert (decision.source, decision.primary) == ("unrouted", "")
