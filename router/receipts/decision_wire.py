"""A decision as it stands on a receipt: complete but for what would make it large."""

from collections.abc import Mapping
from types import MappingProxyType

from octet.v1 import inference_pb2 as wire
from router.decide.decision import Decision, Source
from router.receipts.clip import clip, within

_NAME = 64
_WHY = 240
_NOTE = 160
_NOTES = 480
_SCORES = 480
"""Bytes of names and probabilities; an ensemble of eight takes half."""
_SCORE_BYTES = 15
"""A probability and what protobuf writes around it."""
_ADAPTERS = 4
_SOURCES: Mapping[Source, wire.DecisionSource] = MappingProxyType(
    {
        "forced": wire.DECISION_SOURCE_FORCED,
        "intent": wire.DECISION_SOURCE_INTENT,
        "rule": wire.DECISION_SOURCE_RULE,
        "classifier": wire.DECISION_SOURCE_CLASSIFIER,
        "default": wire.DECISION_SOURCE_DEFAULT,
        "nobody": wire.DECISION_SOURCE_UNSPECIFIED,
    }
)


def decision_to_wire(decision: Decision) -> wire.Decision:
    return wire.Decision(
        source=_SOURCES[decision.source],
        decided_by=clip(decision.decided_by, _NAME),
        why=clip(decision.why, _WHY),
        primary=clip(decision.primary, _NAME),
        second_choice=clip(decision.second_choice, _NAME),
        distribution=_scores(decision.distribution),
        confidence=decision.confidence,
        intent=clip(decision.intent, _NAME),
        task=clip(decision.task, _NAME),
        adapters=[clip(name, _NAME) for name in decision.adapters[:_ADAPTERS]],
        sampling=_without_biases(decision.sampling),
        max_tokens=decision.max_tokens,
        notes=within(_notes(decision), _NOTE, _NOTES),
        request_digest=decision.request_digest,
        config_digest=decision.config_digest,
        classifier_digest=decision.classifier_digest,
    )


def _scores(distribution: tuple[tuple[str, float], ...]) -> list[wire.Score]:
    """The likeliest, as many as there is room for."""
    room = _SCORES
    scores: list[wire.Score] = []
    for name, probability in distribution:
        shown = clip(name, _NAME)
        room -= len(shown.encode()) + _SCORE_BYTES
        if room < 0:
            break
        scores.append(wire.Score(specialist=shown, probability=probability))
    return scores


def _notes(decision: Decision) -> list[str]:
    num_biases = len(decision.sampling.logit_bias)
    unlisted = [f"{num_biases} logit biases are applied, not listed"] if num_biases else []
    return [*unlisted, *decision.notes]


def _without_biases(sampling: wire.Sampling) -> wire.Sampling:
    shown = wire.Sampling()
    shown.CopyFrom(sampling)
    shown.ClearField("logit_bias")
    return shown
