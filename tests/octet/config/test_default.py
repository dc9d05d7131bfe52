"""The default ensemble of eight specialists."""

from dataclasses import replace

from octet.config.annotations import DETECTORS
from octet.config.loader import default_ensemble, default_text, parse_ensemble
from tests.octet.config.ensembles import named

ENSEMBLE = default_ensemble()


def test_eight_specialists_and_their_block_sizes() -> None:
    blocks = {specialist.name: specialist.block_size for specialist in ENSEMBLE.specialists}
    assert blocks == {
        "template": 8,
        "stl": 8,
        "algo": 16,
        "memory": 16,
        "concurrency": 16,
        "systems": 16,
        "build": 16,
        "debug": 16,
    }
    assert {(one.model, one.kv_memory, one.replicas) for one in ENSEMBLE.specialists} == {("demo", 192 << 20, 1)}


def test_each_specialist_has_its_own_texts() -> None:
    for key in ("describe", "system", "examples"):
        said = [getattr(specialist, key) for specialist in ENSEMBLE.specialists]
        assert all(said)
        assert len(set(said)) == len(ENSEMBLE.specialists)
    examples = [example for specialist in ENSEMBLE.specialists for example in specialist.examples]
    assert len(set(examples)) == len(examples)


def test_every_fallback_exists_and_every_detector_has_a_rule() -> None:
    assert all(specialist.fallback in ENSEMBLE.names for specialist in ENSEMBLE.specialists)
    assert {rule.detect for rule in ENSEMBLE.rules} == set(DETECTORS)


def test_intents_that_a_caller_may_declare() -> None:
    assert {intent.name: intent.specialist for intent in ENSEMBLE.intents} == {
        "codegen": None,
        "debug": "debug",
        "build-fix": "build",
        "review": None,
        "unspecified": None,
    }
    assert named(ENSEMBLE.intents, "review").shadow_threshold > named(ENSEMBLE.intents, "codegen").shadow_threshold


def test_unrelated_request_is_rejected_by_a_trained_classifier() -> None:
    assert ENSEMBLE.default == "stl", "small talk needs a specialist"
    assert ENSEMBLE.classifier.path == "default"


def test_default_file_is_read_like_any_other() -> None:
    assert parse_ensemble(default_text(), None) == replace(ENSEMBLE, source=None) == ENSEMBLE
