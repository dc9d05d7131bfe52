"""Train the linear classifier: fit, evaluate on left-out sources, calibrate. Needs scikit-learn."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from octet.config.ensemble import REJECT
from octet.terminal import install_hint
from router.routing.classifier.base import sample_text
from router.routing.classifier.features import Features, extract_features
from router.routing.classifier.linear import LinearClassifier, LinearModel, Vectorizer, encode_model
from router.routing.training.records import LabelledPrompt

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression


class TrainingUnavailable(RuntimeError):
    """scikit-learn is not installed."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Hyperparameters, chosen by cross-validation over the training sources, never on the held-out test sources."""

    family_scale: tuple[float, ...] = (1.0, 0.5, 1.0, 0.3)  # scale of words, pairs, letters and punctuation
    min_prompts: int = 2  # features that occur in fewer prompts are dropped
    strength: float = 10.0  # the inverse of the L2 penalty
    max_iterations: int = 300
    tolerance: float = 1e-3


DEFAULT_RECIPE = Recipe()


def fit(records: Sequence[LabelledPrompt], labels: tuple[str, ...], recipe: Recipe = DEFAULT_RECIPE) -> LinearModel:
    """Fit without calibration: the temperature is 1."""
    found = list(map(record_features, records))
    buckets, rarity = _vocabulary(found, recipe.min_prompts)
    scale = np.array(recipe.family_scale, dtype=np.float32)
    matrix = feature_matrix(Vectorizer(buckets, rarity, scale), found, len(buckets))
    weights = [record.weight for record in records]
    fitted = _regression(matrix, [labels.index(record.label) for record in records], weights, recipe)
    weights, bias = fitted.coef_.T.astype(np.float16), fitted.intercept_.astype(np.float32)
    return LinearModel(labels, buckets, rarity, weights, bias, scale, 1.0)


def record_features(record: LabelledPrompt) -> Features:
    return extract_features([sample_text(record.text)]) if record.features is None else record.features


def _regression(
    matrix: "csr_matrix[Any]", truth: Sequence[int], weights: Sequence[float], recipe: Recipe
) -> "LogisticRegression":
    """Fit on one thread: this is faster for small data, and a repeated fit gives the same result."""
    try:
        from sklearn.linear_model import LogisticRegression
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    except ImportError as error:
        raise TrainingUnavailable(f"training needs scikit-learn: {install_hint('train')}") from error
    with threadpool_limits(limits=1):
        model = LogisticRegression(C=recipe.strength, max_iter=recipe.max_iterations, tol=recipe.tolerance)
        return model.fit(matrix, truth, sample_weight=None if set(weights) <= {1.0} else weights)


def _vocabulary(found: Sequence[Features], min_prompts: int) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    buckets, num_prompts = np.unique(np.concatenate([np.unique(each.bucket) for each in found]), return_counts=True)
    kept = num_prompts >= min_prompts
    rarity = np.log((1 + len(found)) / (1 + num_prompts[kept])) + 1
    return buckets[kept].astype(np.uint32), rarity.astype(np.float32)


def feature_matrix(vectorizer: Vectorizer, found: Sequence[Features], width: int) -> "csr_matrix[Any]":
    """Return the weighted features, shape [len(found), width]. Each item of `found` has those of one prompt."""
    from scipy.sparse import csr_matrix

    rows = [vectorizer.terms(each, 1) for each in found]
    values = np.concatenate([terms.value for terms in rows])
    columns = np.concatenate([terms.row for terms in rows])
    ends = np.cumsum([0, *(len(terms.row) for terms in rows)])
    return csr_matrix((values, columns, ends), shape=(len(found), width))


def uncalibrated_probabilities(model: LinearModel, records: Sequence[LabelledPrompt]) -> NDArray[np.float64]:
    return prompt_probabilities(LinearClassifier(model, ""), records)


def prompt_probabilities(classifier: LinearClassifier, records: Sequence[LabelledPrompt]) -> NDArray[np.float64]:
    return np.concatenate([classifier.feature_probabilities(record_features(record), 1) for record in records])


NUM_FOLDS = 6


class TooFewSources(ValueError):
    """There are too few sources: calibration needs sources that were not trained on."""


def make_folds(records: Sequence[LabelledPrompt], most: int = NUM_FOLDS) -> list[frozenset[str]]:
    """Return at most `most` groups of sources with similar numbers of records. Deterministic."""
    sizes = Counter(record.source for record in records)
    if len(sizes) < 2:
        raise TooFewSources(f"training needs at least 2 sources, because one is held out; got {sorted(sizes)}")
    groups: list[list[str]] = [[] for _ in range(min(most, len(sizes)))]
    for source in sorted(sizes, key=lambda name: (-sizes[name], name)):
        min(groups, key=lambda group: sum(sizes[name] for name in group)).append(source)
    return [frozenset(group) for group in groups]


def left_out_probabilities(
    records: Sequence[LabelledPrompt], labels: tuple[str, ...], recipe: Recipe = DEFAULT_RECIPE, most: int = NUM_FOLDS
) -> NDArray[np.float64]:
    """Return each record's probabilities, shape [records, labels], by a model that was not trained on its source."""
    out = np.zeros((len(records), len(labels)))
    for fold in make_folds(records, most):
        inside = np.array([record.source in fold for record in records])
        rest = [record for record in records if record.source not in fold]
        present = tuple(label for label in labels if any(record.label == label for record in rest))
        left_out = [record for record in records if record.source in fold]
        seen = uncalibrated_probabilities(fit(rest, present, recipe), left_out)
        columns = np.array([labels.index(label) for label in present])
        out[np.ix_(np.flatnonzero(inside), columns)] = seen
    return out


MIN_TEMPERATURE, MAX_TEMPERATURE = 0.2, 8.0
MIN_PROBABILITY = 1e-12


def fit_temperature(probabilities: NDArray[np.float64], truth: NDArray[np.intp]) -> float:
    """Return the temperature with the lowest mean log loss."""
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    logits = np.log(np.maximum(probabilities, MIN_PROBABILITY))

    def loss(log_temperature: float) -> float:
        scaled = log_softmax(logits / np.exp(log_temperature), axis=1)
        return float(-scaled[np.arange(len(truth)), truth].mean())

    bounds = np.log((MIN_TEMPERATURE, MAX_TEMPERATURE))
    best = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-10})
    return float(np.float32(np.exp(best.x)))


@dataclass(frozen=True, slots=True)
class TrainedClassifier:
    data: bytes  # the content of the classifier's file
    temperature: float
    left_out_top1: float  # accuracy on prompts whose source was left out of training


def collect_labels(records: Sequence[LabelledPrompt]) -> tuple[str, ...]:
    """Return the labels in order of first occurrence, `reject` last."""
    found = tuple(dict.fromkeys(record.label for record in records if record.label != REJECT))
    return (*found, REJECT) if any(record.label == REJECT for record in records) else found


def train(records: Sequence[LabelledPrompt], recipe: Recipe = DEFAULT_RECIPE) -> TrainedClassifier:
    """Train and calibrate, deterministically. Raises TooFewSources, or TrainingUnavailable without scikit-learn."""
    labels = collect_labels(records)
    truth = np.array([labels.index(record.label) for record in records], dtype=np.intp)
    unseen = left_out_probabilities(records, labels, recipe)
    prompts = np.array([record.is_prompt for record in records])
    temperature = fit_temperature(unseen[prompts], truth[prompts])
    model = replace(fit(records, labels, recipe), temperature=temperature)
    top1 = float((unseen[prompts].argmax(axis=1) == truth[prompts]).mean())
    return TrainedClassifier(encode_model(model), temperature, top1)
