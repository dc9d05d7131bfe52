"""The order in which rules, classifier and defaults decide, and properties of every decision."""

from dataclasses import replace
from itertools import pairwise
from math import isclose

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.config.ensemble import REJECT, Ensemble
from octet.rpc.refusal import Refusal
from octet.v1 import inference_pb2 as wire
from router.refusals import no_specialist
from router.request import Request
from router.routing import policy as rules
from router.routing.classifier.base import Distribution
from router.routing.policy import RoutingPolicy
from router.routing.rules.small_talk import is_small_talk
from tests.router.routing.ensembles import (
    DIGEST,
    ENSEMBLE,
    ENSEMBLES,
    INTENTS,
    NAMES,
    WITH_DEFAULT,
    made,
    opinion,
    opinions,
)
from tests.router.routing.sample_requests import new_validator, sensible, validated_request

POLICY = RoutingPolicy(ENSEMBLE)
ASKS = sensible(NAMES, INTENTS).map(lambda message: new_validator().validate(message, None, None))
LINKER = "/usr/bin/ld: undefined reference to `foo()'"
SURE = opinion(stl=0.81, algo=0.11)


@given(ASKS, opinions() | st.none(), ENSEMBLES)
def test_decisions_are_deterministic(ask: Request, thought: Distribution | None, ensemble: Ensemble) -> None:
    first = RoutingPolicy(ensemble).decide(ask, thought, DIGEST, ("noted",))
    assert RoutingPolicy(ensemble).decide(ask, thought, DIGEST, ("noted",)) == first


@given(ASKS, opinions() | st.none(), ENSEMBLES)
def test_decisions_without_the_classifier_ignore_it(
    ask: Request, thought: Distribution | None, ensemble: Ensemble
) -> None:
    policy = RoutingPolicy(ensemble)
    decision = policy.decide(ask, thought, DIGEST)
    if policy.apply_rules(ask).decision is not None:
        assert decision == policy.decide(ask, None, "")
        assert not decision.distribution and not decision.classifier_digest and decision.confidence is None
    else:
        assert decision.source in ("classifier", "default", "unrouted")
        assert decision.classifier_digest == ("" if thought is None else DIGEST)


@given(ASKS, opinions() | st.none(), ENSEMBLES)
def test_excluded_specialists_do_not_answer(ask: Request, thought: Distribution | None, ensemble: Ensemble) -> None:
    decision = RoutingPolicy(ensemble).decide(ask, thought, DIGEST)
    chosen = [name for name in (decision.primary, decision.second_choice) if name]
    assert not set(chosen) & set(ask.exclude)
    assert set(chosen) <= set(NAMES) and len(set(chosen)) == len(chosen)
    assert bool(decision.primary) == (decision.source != "unrouted")
    assert decision.primary or not decision.second_choice
    if ask.force:
        assert chosen == list(ask.force[:2]) and decision.source == "forced"
    assert decision.why and "\n" not in decision.why


@given(ASKS, opinions(), ENSEMBLES)
def test_the_distribution_is_normalized_without_excluded_specialists(
    ask: Request, thought: Distribution, ensemble: Ensemble
) -> None:
    decision = RoutingPolicy(ensemble).decide(ask, thought, DIGEST)
    if not decision.classifier_digest:
        return
    shares = dict(decision.distribution)
    assert isclose(sum(shares.values()), 1.0) and REJECT in shares
    assert not set(shares) & set(ask.exclude)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert decision.confidence == (shares.get(decision.primary, 0.0) if decision.primary else None)


@given(ASKS, opinions(), ENSEMBLES)
def test_thresholds_follow_the_configuration(ask: Request, thought: Distribution, ensemble: Ensemble) -> None:
    decision = RoutingPolicy(ensemble).decide(ask, thought, DIGEST)
    if not decision.classifier_digest:
        return
    whole, shares, limits = dict(thought.scores), dict(decision.distribution), ensemble.classifier
    reject, _ = whole.pop(REJECT), shares.pop(REJECT)
    top, best = min(whole, key=lambda name: (-whole[name], name)), max(shares.values())
    weight = sum(share for name, share in whole.items() if name not in ask.exclude)
    stand_in = _allowed(ensemble.specialist(top).fallback, ask) if top in ask.exclude else ""
    default = _allowed(ensemble.default, ask)
    is_unsure = max(reject, *whole.values()) < rules.SURE or reject > 1 - rules.SURE
    if limits.path is not None and is_unsure and is_small_talk(ask.text, frozenset()):
        assert (decision.source, decision.primary) == (("default", default) if default else ("unrouted", ""))
        return
    if reject >= limits.reject_threshold or reject >= whole[top]:
        is_placed = default and limits.path is None
        assert (decision.source, decision.primary) == (("default", default) if is_placed else ("unrouted", ""))
        return
    if min(best, weight) >= limits.min_confidence:
        assert decision.source == "classifier" and shares[decision.primary] == best
    elif stand_in:
        assert (decision.source, decision.primary) == ("classifier", stand_in)
        assert decision.second_choice == _allowed(ensemble.specialist(stand_in).fallback, ask)
        return
    else:
        assert (decision.source, decision.primary) == (("default", default) if default else ("unrouted", ""))
    others = [share for name, share in shares.items() if name != decision.primary]
    if decision.primary and others and max(others) >= limits.second_threshold:
        assert shares[decision.second_choice] == max(others)
    elif decision.primary:
        assert decision.second_choice == _allowed(ensemble.specialist(decision.primary).fallback, ask)


def _allowed(name: str | None, ask: Request) -> str:
    return name if name and name not in ask.exclude else ""


@given(ASKS, opinions(), ENSEMBLES)
def test_exclusion_does_not_make_a_rejection_likelier(ask: Request, thought: Distribution, ensemble: Ensemble) -> None:
    decision = RoutingPolicy(ensemble).decide(ask, thought, DIGEST)
    if decision.classifier_digest:
        before, after = dict(thought.scores), dict(decision.distribution)
        assert after[REJECT] == before[REJECT]
        left = [name for name in NAMES if name not in ask.exclude]
        for one, other in pairwise(left):
            assert isclose(after[one] * before[other], after[other] * before[one], abs_tol=1e-12)


@pytest.mark.parametrize(
    ("thought", "exclude", "default", "source", "primary", "second"),
    [
        (opinion(algo=0.998, build=0.001), ["algo"], None, "classifier", "stl", ""),
        (opinion(algo=0.998, build=0.001), ["algo", "stl"], None, "unrouted", "", ""),
        (opinion(algo=0.998, build=0.001), ["algo", "stl"], "debug", "default", "debug", "build"),
        (opinion(debug=0.998, build=0.001), ["debug"], None, "unrouted", "", ""),
        (opinion(algo=0.7, build=0.2, stl=0.05), ["algo"], None, "classifier", "build", "stl"),
        (opinion(algo=0.3, build=0.2, stl=0.1), ["algo"], "debug", "default", "debug", "build"),
        (opinion(algo=0.3, build=0.2, stl=0.1), ["algo"], None, "unrouted", "", ""),
    ],
)
def test_fallback_of_an_excluded_specialist_was_configured_or_likely(
    thought: Distribution, exclude: list[str], default: str | None, source: str, primary: str, second: str
) -> None:
    policy = RoutingPolicy(replace(ENSEMBLE, default=default))
    decision = policy.decide(validated_request(exclude_specialists=exclude), thought, DIGEST)
    assert (decision.source, decision.primary, decision.second_choice) == (source, primary, second)


@pytest.mark.parametrize("thought", [opinion(), opinion(stl=0.1), None])
def test_a_single_specialist_gets_what_nothing_places(thought: Distribution | None) -> None:
    only = replace(ENSEMBLE, specialists=ENSEMBLE.specialists[-1:], intents=(), rules=())
    decision = RoutingPolicy(only).decide(validated_request(), thought, DIGEST)
    assert (decision.source, decision.decided_by, decision.primary) == ("default", "only specialist", "stl")
    assert decision.why.startswith("stl is the only specialist; ")
    trained = replace(only, classifier=replace(only.classifier, path="trained.safetensors"))
    refused = RoutingPolicy(trained).decide(validated_request(), opinion(), DIGEST)
    assert refused.source == "unrouted", "a trained classifier has learnt what to reject"


def test_a_refusal_names_the_way_out() -> None:
    decision = POLICY.decide(validated_request(), opinion(), DIGEST)
    trained = replace(WITH_DEFAULT, classifier=replace(WITH_DEFAULT.classifier, path="trained.safetensors"))
    for ensemble, setting in (
        (ENSEMBLE, "; an operator can set `default`, a specialist for requests that fit none"),
        (trained, "; the `default` specialist, stl, is only for small talk and unclear requests, and may be excluded"),
    ):
        message = no_specialist(decision, ensemble).error.message
        assert "; a request can name one, as model octet/NAME over HTTP or in force_specialists; " in message
        assert message.endswith(setting)


def test_force_goes_before_intent_before_rule_before_classifier() -> None:
    options = {"force_specialists": ["stl"], "intent": "build-fix"}
    sources = []
    text = "==1==ERROR: AddressSanitizer: stack-overflow on address 0x7"
    for dropped in ("", "force_specialists", "intent"):
        options.pop(dropped, None)
        decision = POLICY.decide(validated_request(prompt=text, **options), SURE, DIGEST)
        sources.append((decision.source, decision.primary, decision.decided_by))
    decision = POLICY.decide(validated_request(prompt="why?"), SURE, DIGEST)
    sources.append((decision.source, decision.primary, decision.decided_by))
    assert sources == [
        ("forced", "stl", "force_specialists"),
        ("intent", "build", "build-fix"),
        ("rule", "debug", "sanitizer"),
        ("classifier", "stl", DIGEST),
    ]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"force_specialists": ["stl", "algo"]}, "the caller asked for stl, else algo"),
        ({"intent": "build-fix"}, "the declared intent 'build-fix' belongs to build"),
        ({"prompt": f"Hi\n\n{LINKER}"}, "rule 'linker' matched linker output (undefined reference to) on line 3"),
        ({}, "classifier: stl 0.81, algo 0.11, reject 0.08"),
        ({"exclude_specialists": list(NAMES)}, "the caller excluded every specialist"),
    ],
)
def test_the_reason_is_a_sentence(fields: dict[str, object], why: str) -> None:
    assert POLICY.decide(validated_request(**fields), SURE, DIGEST).why == why


def test_an_overruled_rule_is_recorded_and_the_next_one_tried() -> None:
    ask = validated_request(prompt=f"{LINKER}\nin my thread pool", exclude_specialists=["build"], intent="build-fix")
    decision = POLICY.decide(ask, SURE, DIGEST)
    assert (decision.source, decision.decided_by, decision.second_choice) == ("rule", "pool", "stl")
    assert decision.notes == (
        "intent 'build-fix' belongs to build, which the caller excluded",
        "rule 'linker' matched linker output (undefined reference to) on line 1; it belongs to build, "
        "which the caller excluded",
    )


def test_only_the_first_two_forced_specialists_are_used() -> None:
    decision = POLICY.decide(
        validated_request(force_specialists=["stl", "algo", "debug"], intent="build-fix"), None, ""
    )
    assert (decision.primary, decision.second_choice) == ("stl", "algo")
    assert len(decision.notes) == 2
    assert POLICY.decide(validated_request(force_specialists=["algo"]), SURE, DIGEST).second_choice == ""


def test_labels_of_foreign_specialists_count_as_reject() -> None:
    thought = made({"memory": 0.7, "stl": 0.2, REJECT: 0.1})
    decision = POLICY.decide(validated_request(), thought, DIGEST)
    assert decision.source == "unrouted"
    assert dict(decision.distribution)[REJECT] == pytest.approx(0.8)


def test_a_missing_distribution_is_never_a_decision() -> None:
    unheard = POLICY.decide(validated_request(), None, "", ("the classifier did not answer: it stalled",))
    assert unheard.source == "unrouted" and "unavailable" in unheard.why and len(unheard.notes) == 1
    assert no_specialist(unheard, ENSEMBLE).code is grpc.StatusCode.UNAVAILABLE
    normal = POLICY.decide(validated_request(), opinion(stl=0.1), DIGEST)
    excluded = POLICY.decide(validated_request(exclude_specialists=list(NAMES)), None, "")
    for decision in (normal, excluded):
        refusal = no_specialist(decision, ENSEMBLE)
        assert refusal.code is grpc.StatusCode.FAILED_PRECONDITION
        assert refusal.error.reason == wire.ERROR_REASON_NO_SPECIALIST and decision.why in refusal.error.message
    fallen_back = RoutingPolicy(WITH_DEFAULT).decide(validated_request(), None, "")
    assert (fallen_back.source, fallen_back.primary, fallen_back.second_choice) == ("default", "stl", "algo")
    assert (
        RoutingPolicy(WITH_DEFAULT).decide(validated_request(exclude_specialists=["stl"]), None, "").source
        == "unrouted"
    )


@pytest.mark.parametrize("field", ["force_specialists", "exclude_specialists"])
def test_unknown_specialist_is_refused_with_the_known_ones(field: str) -> None:
    with pytest.raises(Refusal) as refused:
        POLICY.decide(validated_request(**{field: ["sql"]}), SURE, DIGEST)
    error = refused.value.error
    assert (error.reason, error.field, error.value) == (wire.ERROR_REASON_UNKNOWN_SPECIALIST, field, "'sql'")
    assert error.limit == "one of algo, build, debug, stl"


def test_unknown_intent_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Refusal, match="one of build-fix, review, codegen") as refused:
        POLICY.decide(validated_request(intent="cooking"), SURE, DIGEST)
    assert refused.value.error.field == "intent"
    with pytest.raises(Refusal, match="no intents are configured"):
        RoutingPolicy(replace(ENSEMBLE, intents=())).decide(validated_request(intent="cooking"), SURE, DIGEST)


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "something else"},
        {"intent": "codegen"},
        {"force_specialists": ["algo"]},
        {"exclude_specialists": ["algo"]},
        {"adapters": ["x"]},
        {"max_experts": 2},
        {"max_tokens": 7},
        {"min_tokens": 7},
        {"priority": 9},
        {"sampling": wire.Sampling(top_k=3)},
        {"structure": wire.Structure(regex="a")},
    ],
)
def test_every_deciding_field_is_in_the_requests_digest(change: dict[str, object]) -> None:
    before = POLICY.decide(validated_request(), SURE, DIGEST).request_digest
    assert POLICY.decide(validated_request(**change), SURE, DIGEST).request_digest != before
    other = POLICY.decide(validated_request(seed=3, session_id="s", request_id="r"), SURE, DIGEST)
    assert other.request_digest == before
