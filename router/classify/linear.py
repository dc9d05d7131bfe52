"""The trained classifier: a linear model over hashed features, a softmax, a temperature. Needs numpy alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from router.classify.base import Distribution
from router.classify.features import BUCKET_BITS, FAMILIES, MAX_BYTES, Features, extract
from router.classify.sample import sample

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LinearModel:
    """The numbers of a trained classifier, as they stand in its file."""

    labels: tuple[str, ...]
    buckets: NDArray[np.uint32]
    """[V] The bucket of each known feature, in rising order."""
    rarity: NDArray[np.float32]
    """[V] What a feature counts for within its family, before the family is scaled to length 1."""
    weights: NDArray[np.float16]
    """[V, L]"""
    bias: NDArray[np.float32]
    """[L]"""
    family_scale: NDArray[np.float32]
    """[F] The length to which each family of features is scaled."""
    temperature: float


class Terms(NamedTuple):
    """The known features of a batch, each once a prompt and family."""

    prompt: NDArray[np.intp]
    family: NDArray[np.uint8]
    row: NDArray[np.int32]
    value: Floats


class Vectorizer:
    """From samples to the known features and their values."""

    def __init__(
        self, buckets: NDArray[np.uint32], rarity: NDArray[np.float32], family_scale: NDArray[np.float32]
    ) -> None:
        self._row_of = np.full(1 << BUCKET_BITS, -1, dtype=np.int32)
        self._row_of[buckets] = np.arange(len(buckets), dtype=np.int32)
        self._rarity = rarity.astype(np.float64)
        self._scale = family_scale.astype(np.float64)

    def terms(self, samples: Sequence[bytes]) -> Terms:
        prompt, family, row = self._known(extract(samples))
        value = self._rarity[row]
        group = prompt * len(FAMILIES) + family
        squares = np.bincount(group, weights=value * value, minlength=len(samples) * len(FAMILIES))
        lengths = np.sqrt(np.where(squares > 0, squares, 1))
        return Terms(prompt, family, row, value * (self._scale[family] / lengths[group]))

    def _known(self, found: Features) -> tuple[NDArray[np.intp], NDArray[np.uint8], NDArray[np.int32]]:
        row = self._row_of[found.bucket]
        known = np.flatnonzero(row >= 0)
        row, prompt, family = row[known], found.prompt[known], found.family[known]
        first = _first_of_each(prompt * len(self._rarity) + row)
        return prompt[first], family[first], row[first]


def _first_of_each(keys: NDArray[np.intp]) -> NDArray[np.intp]:
    """Where each key comes for the first time, in order. Linear: the last of several writes to a place stands."""
    if not len(keys):
        return keys
    places = np.arange(len(keys), dtype=np.int32)
    seen = np.empty(int(keys.max()) + 1, dtype=np.int32)
    seen[keys[::-1]] = places[::-1]
    return np.flatnonzero(seen[keys] == places)


class LinearClassifier:
    def __init__(self, model: LinearModel, digest: str) -> None:
        self._digest = digest
        self._labels = model.labels
        self._vectorizer = Vectorizer(model.buckets, model.rarity, model.family_scale)
        self._weights = model.weights.astype(np.float32)  # [V, L]
        self._bias = model.bias.astype(np.float64)
        self._temperature = model.temperature

    @property
    def digest(self) -> str:
        return self._digest

    @property
    def labels(self) -> tuple[str, ...]:
        return self._labels

    def classify(self, texts: Sequence[str]) -> list[Distribution]:
        samples = [sample(text) for text in texts]
        return [d for batch in _batches(samples) for d in self._distributions(self.probabilities(batch))]

    def probabilities(self, samples: Sequence[bytes]) -> Floats:
        """[N, L] in the order of the labels."""
        return softmax(self._logits(samples) / self._temperature)

    def _logits(self, samples: Sequence[bytes]) -> Floats:
        terms = self._vectorizer.terms(samples)
        shares = self._weights[terms.row] * terms.value[:, None]  # [T, L]
        if len(samples) > 1:
            shares = shares[np.argsort(terms.prompt, kind="stable")]
        ends = np.cumsum(np.bincount(terms.prompt, minlength=len(samples)))
        return _sums(shares, ends) + self._bias

    def _distributions(self, probabilities: Floats) -> Iterator[Distribution]:
        for row in probabilities.tolist():
            yield Distribution.of(zip(self._labels, row, strict=True))


def _sums(shares: Floats, ends: NDArray[np.intp]) -> Floats:
    """[N, L] The rows up to each end, added one after the other so that the batch never changes a bit."""
    starts = np.concatenate([[0], ends[:-1]])
    filled = starts < ends
    sums = np.zeros((len(ends), shares.shape[1]))
    if filled.any():
        sums[filled] = np.add.reduceat(shares, starts[filled], axis=0)
    return sums


def softmax(logits: Floats) -> Floats:
    """[N, L] Row by row, summed label after label so that the batch never changes a bit."""
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    total = raised[:, 0].copy()
    for column in raised.T[1:]:
        total += column
    return np.asarray(raised / total[:, None])


def _batches(samples: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """As many prompts at once as the features can take."""
    start, size = 0, 1
    for at, piece in enumerate(samples):
        if size + len(piece) + 1 > MAX_BYTES:
            yield samples[start:at]
            start, size = at, 1
        size += len(piece) + 1
    if start < len(samples):
        yield samples[start:]
