"""Retrain the classifier with verdicts on shadows. A gate decides whether the result may replace the classifier."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from math import exp, fsum, lgamma, log
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from octet.client.records import Comparison
from octet.config.ensemble import REJECT
from octet.terminal import format_table
from router.routing.classifier.features import BUCKET_BITS, Features
from router.routing.classifier.linear import LinearClassifier, decode_model, encode_model, reject_column
from router.routing.classifier.reader import FEATURE_VERSION, VIEW_FAMILIES
from router.routing.dispatch_plan import CountedReason
from router.routing.training.calibration import calibrate_model, fit_calibration
from router.routing.training.evaluation import calibration_error
from router.routing.training.records import LabelledPrompt
from router.routing.training.train import (
    accepted_labels,
    collect_labels,
    fit,
    prompt_probabilities,
    record_features,
    uncalibrated_logits,
)

SOURCE = "shadow"
MIN_REFERENCE = 40
MIN_HELD_BACK = 20  # with fewer examples held back, the gate cannot judge
MAX_CHANCE = 0.05  # largest probability that the improvement on the examples held back is chance
_HELD_BACK = 0.3  # share of the examples that are not trained on
_HASH_RANGE = 1 << 64


@dataclass(frozen=True, slots=True)
class ShadowExamples:
    trained: tuple[LabelledPrompt, ...]
    held_back: tuple[LabelledPrompt, ...]
    left_out: tuple[tuple[str, int], ...]  # why comparisons were left out, and how many


def collect_examples(comparisons: Iterable[Comparison], labels: Sequence[str]) -> ShadowExamples:
    """Return an example for each prompt to which one specialist gave the only answer that passed: its label is this
    specialist. A prompt counts once, however often it was sent; if that gave several labels, it has the most frequent
    one. It is trained on or held back. Raises ValueError for invalid features."""
    left_out = Counter[str]()
    found: dict[float, Counter[str]] = {}
    firsts: dict[float, LabelledPrompt] = {}
    for comparison in comparisons:
        outcomes = comparison.primary_outcome, comparison.shadow_outcome
        label = {("passed", "failed"): comparison.primary, ("failed", "passed"): comparison.shadow}.get(outcomes)
        if comparison.why not in get_args(CountedReason):
            left_out["shadows that evaluate a lane"] += 1
        elif label is None:
            left_out["both, none or not all answers passed"] += 1
        elif label not in labels or label == REJECT:
            left_out["unknown specialists"] += 1
        elif not comparison.text and not comparison.feature_indices:
            left_out["without text and features"] += 1
        elif not comparison.text and comparison.feature_version != FEATURE_VERSION:
            left_out["features of another version of Octet"] += 1
        else:
            example = _to_example(comparison, label)
            key = _draw(example)
            left_out["repeated prompts"] += key in firsts
            firsts.setdefault(key, example)
            found.setdefault(key, Counter())[label] += 1
    examples = {key: replace(example, label=found[key].most_common(1)[0][0]) for key, example in firsts.items()}
    trained = tuple(each for key, each in examples.items() if key >= _HELD_BACK)
    held_back = tuple(each for key, each in examples.items() if key < _HELD_BACK)
    return ShadowExamples(trained, held_back, tuple(sorted((+left_out).items())))


def _to_example(comparison: Comparison, label: str) -> LabelledPrompt:
    example = LabelledPrompt(comparison.text, label, SOURCE)
    if comparison.text:
        return example
    indices = np.array(comparison.feature_indices, dtype=np.int64)
    if indices.min() < 0 or indices.max() >= len(VIEW_FAMILIES) << BUCKET_BITS:
        limit = (len(VIEW_FAMILIES) << BUCKET_BITS) - 1
        raise ValueError(f"comparison {comparison.request_id}: feature_indices must be in [0, {limit}]")
    family, bucket = (indices >> BUCKET_BITS).astype(np.uint8), (indices % (1 << BUCKET_BITS)).astype(np.uint32)
    return replace(example, features=Features(np.zeros(len(indices), dtype=np.intp), family, bucket))


def _draw(record: LabelledPrompt) -> float:
    """Return a number in [0, 1) that depends only on the prompt's features."""
    buckets = np.unique(record_features(record).bucket)
    return int.from_bytes(sha256(buckets.tobytes()).digest()[:8]) / _HASH_RANGE


@dataclass(frozen=True, slots=True)
class ReferencePrompts:
    calibrating: tuple[LabelledPrompt, ...]
    judging: tuple[LabelledPrompt, ...]


def split_reference(records: Sequence[LabelledPrompt]) -> ReferencePrompts:
    """Divide the reference: one half calibrates the new classifier, the other judges both. Raises ValueError if it is
    too small."""
    if len(records) < MIN_REFERENCE:
        raise ValueError(f"the reference must have at least {MIN_REFERENCE} prompts, got {len(records)}")
    ordered = sorted(records, key=_draw)
    return ReferencePrompts(tuple(ordered[::2]), tuple(ordered[1::2]))


@dataclass(frozen=True, slots=True)
class ClassifierFigures:
    num: int
    top1: float
    calibration_error: float


@dataclass(frozen=True, slots=True)
class GateReport:
    """The figures of two classifiers on prompts on which neither was trained."""

    base: str  # digests
    retrained: str
    trained_on: int  # examples from shadows
    left_out: tuple[tuple[str, int], ...]
    held_back: tuple[ClassifierFigures, ClassifierFigures]  # before and after, on examples held back
    won: int  # examples held back on which only the retrained classifier is right
    lost: int
    chance: float  # probability of as many wins if both were equally good
    reference: tuple[ClassifierFigures, ClassifierFigures]
    margin: float
    refusals: tuple[str, ...]  # why the retrained classifier may not replace the base; empty if it may

    def to_json(self) -> str:
        return json.dumps({"promoted": not self.refusals, **asdict(self)}, indent=2)


def retrain(corpus: Sequence[LabelledPrompt], examples: ShadowExamples, calibrating: Sequence[LabelledPrompt]) -> bytes:
    """Train on the corpus and the examples, which together weigh at most as much as the corpus. Calibrate on other
    prompts, because the examples are harder than most requests. Deterministic."""
    weight, labels = min(1.0, len(corpus) / max(1, len(examples.trained))), collect_labels(corpus)
    model = fit([*corpus, *(replace(each, weight=weight) for each in examples.trained)], labels)
    accepted = accepted_labels(calibrating, labels)
    calibration = fit_calibration(uncalibrated_logits(model, calibrating), accepted, reject_column(labels))
    return encode_model(calibrate_model(model, calibration))


def judge_retrained(
    base: LinearClassifier,
    data: bytes,
    examples: ShadowExamples,
    reference: Sequence[LabelledPrompt],
    margin: float,
) -> GateReport:
    """Compare the classifier in `data` with `base`. It must be better on the examples held back, not just by chance. On
    the reference, neither its accuracy nor its calibration error may be worse by more than `margin`."""
    retrained = decode_model(data)
    before, after = (_measure(each, examples.held_back) for each in (base, retrained))
    won, lost = int((after.right & ~before.right).sum()), int((before.right & ~after.right).sum())
    chance = _chance_of_wins(won, won + lost)
    known, now = (_measure(each, reference).figures for each in (base, retrained))
    refusals = []
    if len(examples.held_back) < MIN_HELD_BACK:
        refusals.append(f"only {len(examples.held_back)} examples are held back; at least {MIN_HELD_BACK} are needed")
    elif won <= lost or chance > MAX_CHANCE:
        refusals.append(
            f"it is not better on the examples held back: {won} won, {lost} lost; the probability that this is chance "
            f"is {chance:.3f}, the limit is {MAX_CHANCE:g}"
        )
    if now.top1 < known.top1 - margin:
        refusals.append(f"its top-1 on the reference is {now.top1:.1%}, the limit is {known.top1 - margin:.1%}")
    if now.calibration_error > known.calibration_error + margin:
        limit = known.calibration_error + margin
        refusals.append(f"its calibration error on the reference is {now.calibration_error:.3f}, the limit {limit:.3f}")
    figures = (before.figures, after.figures)
    num, left_out = len(examples.trained), examples.left_out
    both = base.digest, retrained.digest
    return GateReport(*both, num, left_out, figures, won, lost, chance, (known, now), margin, tuple(refusals))


def _chance_of_wins(won: int, total: int) -> float:
    """Return the probability of at least this many wins among so many fair draws."""
    ways = (lgamma(total + 1) - lgamma(wins + 1) - lgamma(total - wins + 1) for wins in range(won, total + 1))
    return min(1.0, fsum(exp(each - total * log(2)) for each in ways))


@dataclass(frozen=True, slots=True)
class _Measured:
    figures: ClassifierFigures
    right: NDArray[np.bool_]


def _measure(classifier: LinearClassifier, records: Sequence[LabelledPrompt]) -> _Measured:
    if not records:
        return _Measured(ClassifierFigures(0, 0.0, 0.0), np.zeros(0, dtype=bool))
    unknown = sorted({record.label for record in records} - set(classifier.labels))
    if unknown:
        raise ValueError(f"labels {', '.join(unknown)} are unknown to the classifier {classifier.digest[:12]}")
    found = prompt_probabilities(classifier, records)
    right = found.argmax(axis=1) == np.array([classifier.labels.index(record.label) for record in records])
    error = calibration_error(found.max(axis=1), right.astype(np.float64))
    return _Measured(ClassifierFigures(len(records), float(right.mean()), error), right)


def format_gate(report: GateReport) -> str:
    pairs = {"held back": report.held_back, "reference": report.reference}
    rows = [
        (f"{name}, {when}", str(each.num), f"{each.top1:.1%}", f"{each.calibration_error:.3f}")
        for name, figures in pairs.items()
        for when, each in zip(("before", "after"), figures, strict=True)
    ]
    left_out = "".join(f"; left out: {number} ({why})" for why, number in report.left_out)
    return "\n".join(
        (
            f"trained on {report.trained_on} examples from shadows{left_out}",
            format_table(("prompts", "number", "top-1", "ECE"), rows),
            f"held back: {report.won} won, {report.lost} lost, probability of chance {report.chance:.3g}",
            *(f"refused: {why}" for why in report.refusals),
        )
    )
