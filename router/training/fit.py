"""From labelled prompts to the numbers of the classifier. Needs scikit-learn: pip install octet[train]."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from router.classify.features import extract
from router.classify.linear import LinearClassifier, LinearModel, Vectorizer
from router.classify.sample import sample
from router.training.records import Record

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression


class TrainingUnavailable(RuntimeError):
    """What training needs is not installed."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What was chosen on left-out training sources, never on the held-out ones."""

    family_scale: tuple[float, ...] = (1.0, 0.5, 1.0, 0.3)
    """How much words, pairs, letters and punctuation count."""
    min_prompts: int = 2
    """A feature of fewer prompts is dropped."""
    strength: float = 10.0
    """The inverse of the L2 penalty."""
    max_iterations: int = 300
    tolerance: float = 1e-3


DEFAULT_RECIPE = Recipe()


@dataclass(frozen=True, slots=True)
class Fitted:
    model: LinearModel
    oracle: "LogisticRegression"
    """scikit-learn's own model, with the weights as they were rounded for the file."""


def fit(records: Sequence[Record], labels: tuple[str, ...], recipe: Recipe = DEFAULT_RECIPE) -> Fitted:
    """A model that is not calibrated yet: its temperature is 1."""
    samples = [sample(record.text) for record in records]
    buckets, rarity = _vocabulary(samples, recipe.min_prompts)
    scale = np.array(recipe.family_scale, dtype=np.float32)
    matrix = vectors(Vectorizer(buckets, rarity, scale), samples, len(buckets))
    oracle = _regression(matrix, [labels.index(record.label) for record in records], recipe)
    weights, bias = oracle.coef_.T.astype(np.float16), oracle.intercept_.astype(np.float32)
    oracle.coef_, oracle.intercept_ = weights.T.astype(np.float64), bias.astype(np.float64)
    return Fitted(LinearModel(labels, buckets, rarity, weights, bias, scale, 1.0), oracle)


def _regression(matrix: "csr_matrix[Any]", truth: Sequence[int], recipe: Recipe) -> "LogisticRegression":
    """On one thread: that is quicker for so little data, and the order of the sums is always the same."""
    try:
        from sklearn.linear_model import LogisticRegression
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    except ImportError as error:
        raise TrainingUnavailable("training needs scikit-learn: pip install 'octet[train]'") from error
    with threadpool_limits(limits=1):
        model = LogisticRegression(C=recipe.strength, max_iter=recipe.max_iterations, tol=recipe.tolerance)
        return model.fit(matrix, truth)


def _vocabulary(samples: Sequence[bytes], min_prompts: int) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    found = np.concatenate([np.unique(extract([piece]).bucket) for piece in samples])
    buckets, num_prompts = np.unique(found, return_counts=True)
    kept = num_prompts >= min_prompts
    rarity = np.log((1 + len(samples)) / (1 + num_prompts[kept])) + 1
    return buckets[kept].astype(np.uint32), rarity.astype(np.float32)


def vectors(vectorizer: Vectorizer, samples: Sequence[bytes], width: int) -> "csr_matrix[Any]":
    """[N, V]"""
    from scipy.sparse import csr_matrix

    rows = [vectorizer.terms([piece]) for piece in samples]
    values = np.concatenate([terms.value for terms in rows])
    columns = np.concatenate([terms.row for terms in rows])
    ends = np.cumsum([0, *(len(terms.row) for terms in rows)])
    return csr_matrix((values, columns, ends), shape=(len(samples), width))


def calibrated(model: LinearModel, temperature: float) -> LinearModel:
    return replace(model, temperature=temperature)


def uncalibrated_probabilities(model: LinearModel, records: Sequence[Record]) -> NDArray[np.float64]:
    classifier = LinearClassifier(model, "")
    return np.concatenate([classifier.probabilities([sample(record.text)]) for record in records])
