"""The classifier is called only if the rules do not decide and its result is not cached."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from router.request import Request
from router.routing.classifier.base import Distribution
from router.routing.policy import RoutingPolicy
from tests.router.routing.ensembles import DIGEST, ENSEMBLE, INTENTS, NAMES, FixedOpinions, opinion, opinions
from tests.router.routing.sample_requests import new_validator, sensible, validated_request

POLICY = RoutingPolicy(ENSEMBLE)
ASKS = sensible(NAMES, INTENTS).map(lambda message: new_validator().validate(message, None, None))


@given(ASKS, opinions() | st.none(), st.booleans())
def test_live_and_pure_decisions_are_equal(ask: Request, thought: Distribution | None, is_cached: bool) -> None:
    classifier = FixedOpinions(thought, is_cached=is_cached)
    decision = asyncio.run(POLICY.classify_and_decide(ask, classifier))
    notes = decision.notes if thought is None else ()
    wanted = POLICY.decide(ask, thought, DIGEST)
    assert decision.why == wanted.why and decision.primary == wanted.primary
    if thought is not None:
        assert decision == wanted
    needed = POLICY.apply_rules(ask).decision is None
    assert classifier.num_asked == int(needed and not (is_cached and thought is not None))
    assert any("did not answer: its breaker is open" in note for note in notes) == (needed and thought is None)


def test_a_cached_distribution_is_not_computed_again() -> None:
    classifier = FixedOpinions(opinion(stl=0.9), is_cached=True)
    decision = asyncio.run(POLICY.classify_and_decide(validated_request(), classifier))
    assert decision.primary == "stl" and classifier.num_asked == 0
