"""The trained classifier (a linear model over hashed features, a softmax and a temperature) and its file. The file is
in the safetensors format, which cannot contain code."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from router.routing.classifier.base import Distribution, sample_text
from router.routing.classifier.features import BUCKET_BITS, FAMILIES, MAX_BATCH_BYTES, Features, extract_features

Floats = NDArray[np.float64]
DATA = Path(__file__).parents[2] / "data"
DEFAULT_FILE = DATA / "classifier.safetensors"  # the classifier for Octet's eight C++ specialists
FORMAT = "octet-linear-1"
MAX_FILE_BYTES = 256 << 20
MAX_LABELS = 1024
MAX_FEATURES = 1 << BUCKET_BITS
_TENSORS = {  # type and dimensions: V features, L labels, F families. `header` is JSON with the format and the labels.
    "buckets": (np.uint32, "V"),
    "rarity": (np.float32, "V"),
    "weights": (np.float16, "VL"),
    "bias": (np.float32, "L"),
    "family_scale": (np.float32, "F"),
    "temperature": (np.float32, "1"),
    "header": (np.uint8, "H"),
}


@dataclass(frozen=True, slots=True)
class LinearModel:
    """The parameters of a trained classifier, as stored in its file: V features, L labels, F families."""

    labels: tuple[str, ...]
    buckets: NDArray[np.uint32]  # [V] Ascending
    rarity: NDArray[np.float32]  # [V] Weight of a feature within its family, before the family is scaled
    weights: NDArray[np.float16]  # [V, L]
    bias: NDArray[np.float32]  # [L]
    family_scale: NDArray[np.float32]  # [F] Length to which each family is scaled
    temperature: float


class Terms(NamedTuple):
    """The features of a batch that the model knows, each once per prompt."""

    prompt: NDArray[np.intp]
    family: NDArray[np.uint8]
    row: NDArray[np.int32]
    value: Floats


class Vectorizer:
    """Maps samples to the features that the model knows, with their values."""

    def __init__(
        self, buckets: NDArray[np.uint32], rarity: NDArray[np.float32], family_scale: NDArray[np.float32]
    ) -> None:
        self._row_of = np.full(1 << BUCKET_BITS, -1, dtype=np.int32)
        self._row_of[buckets] = np.arange(len(buckets), dtype=np.int32)
        self._rarity = rarity.astype(np.float64)
        self._scale = family_scale.astype(np.float64)

    def terms(self, found: Features, num_prompts: int) -> Terms:
        prompt, family, row = self._known(found)
        value = self._rarity[row]
        group = prompt * len(FAMILIES) + family
        squares = np.bincount(group, weights=value * value, minlength=num_prompts * len(FAMILIES))
        lengths = np.sqrt(np.where(squares > 0, squares, 1))
        return Terms(prompt, family, row, value * (self._scale[family] / lengths[group]))

    def _known(self, found: Features) -> tuple[NDArray[np.intp], NDArray[np.uint8], NDArray[np.int32]]:
        row = self._row_of[found.bucket]
        known = np.flatnonzero(row >= 0)
        row, prompt, family = row[known], found.prompt[known], found.family[known]
        first = _first_of_each(prompt * len(self._rarity) + row)
        return prompt[first], family[first], row[first]


def _first_of_each(keys: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return, in ascending order, the index of each key's first occurrence."""
    if not len(keys):
        return keys
    places = np.arange(len(keys), dtype=np.int32)
    seen = np.empty(int(keys.max()) + 1, dtype=np.int32)
    seen[keys[::-1]] = places[::-1]  # in reverse, because numpy keeps the last of several writes to an index
    return np.flatnonzero(seen[keys] == places)


class LinearClassifier:
    def __init__(self, model: LinearModel, digest: str) -> None:
        self.digest = digest
        self.labels = model.labels
        self._vectorizer = Vectorizer(model.buckets, model.rarity, model.family_scale)
        self._weights = model.weights.astype(np.float32)  # [V, L]
        self._bias = model.bias.astype(np.float64)
        self._temperature = model.temperature

    def classify(self, texts: Sequence[str]) -> list[Distribution]:
        samples = [sample_text(text) for text in texts]
        rows = (row for batch in _batches(samples) for row in self.probabilities(batch).tolist())
        return [Distribution.of(zip(self.labels, row, strict=True)) for row in rows]

    def probabilities(self, samples: Sequence[bytes]) -> Floats:
        """Return the probability of each label for each sample, shape [N, L]."""
        return self.feature_probabilities(extract_features(samples), len(samples))

    def feature_probabilities(self, found: Features, num_prompts: int) -> Floats:
        terms = self._vectorizer.terms(found, num_prompts)
        shares = self._weights[terms.row] * terms.value[:, None]  # [T, L]
        if num_prompts > 1:
            shares = shares[np.argsort(terms.prompt, kind="stable")]
        ends = np.cumsum(np.bincount(terms.prompt, minlength=num_prompts))
        return softmax((_sums(shares, ends) + self._bias) / self._temperature)


def _sums(shares: Floats, ends: NDArray[np.intp]) -> Floats:
    """Return the sum of each prompt's rows, shape [N, L]. The order of addition does not depend on the batch."""
    starts = np.concatenate([[0], ends[:-1]])
    filled = starts < ends
    sums = np.zeros((len(ends), shares.shape[1]))
    if filled.any():
        sums[filled] = np.add.reduceat(shares, starts[filled], axis=0)
    return sums


def softmax(logits: Floats) -> Floats:
    """Return probabilities, shape [N, L]. The order of addition does not depend on the batch."""
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    total = raised[:, 0].copy()
    for column in raised.T[1:]:
        total += column
    return np.asarray(raised / total[:, None])


def _batches(samples: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    start, size = 0, 1
    for at, piece in enumerate(samples):
        if size + len(piece) + 1 > MAX_BATCH_BYTES:
            yield samples[start:at]
            start, size = at, 1
        size += len(piece) + 1
    if start < len(samples):
        yield samples[start:]


class ClassifierInvalid(ValueError):
    """The file is invalid; the message states why."""


def encode_model(model: LinearModel) -> bytes:
    """Return the content of the model's file. Equal models give equal bytes."""
    header = json.dumps({"format": FORMAT, "labels": model.labels}).encode()
    others: dict[str, NDArray[Any]] = {
        "temperature": np.array([model.temperature], dtype=np.float32),
        "header": np.frombuffer(header, dtype=np.uint8).copy(),
    }
    arrays = {name: np.ascontiguousarray(getattr(model, name)) for name in _TENSORS if name not in others}
    return save_tensors({**arrays, **others})


def decode_model(data: bytes) -> LinearClassifier:
    """Return the classifier that a file's content describes. Raises ClassifierInvalid for invalid data."""
    if len(data) > MAX_FILE_BYTES:
        raise ClassifierInvalid(f"the file has {len(data)} bytes; the limit is {MAX_FILE_BYTES}")
    return LinearClassifier(_read_model(data), hashlib.sha256(data).hexdigest())


def read_classifier(path: Path, *, digest: str | None = None) -> LinearClassifier:
    """Return the file's classifier. Raises OSError, or ClassifierInvalid for bad content or an unexpected digest."""
    classifier = decode_model(path.read_bytes())
    if digest is not None and classifier.digest != digest:
        raise ClassifierInvalid(f"{path} has sha256 {classifier.digest}, expected {digest}")
    return classifier


def _read_model(data: bytes) -> LinearModel:
    try:
        tensors: dict[str, Any] = load_tensors(data)
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise ClassifierInvalid(f"the file is not in the safetensors format: {error}") from error
    if set(tensors) != set(_TENSORS):
        raise ClassifierInvalid(f"the tensors must be {sorted(_TENSORS)}, got {sorted(tensors)}")
    for name, (dtype, dimensions) in _TENSORS.items():
        if tensors[name].dtype != dtype or tensors[name].ndim != len(dimensions):
            found = f"{tensors[name].dtype} with {tensors[name].ndim} dimensions"
            raise ClassifierInvalid(f"{name} must be {np.dtype(dtype)} with {len(dimensions)} dimensions, got {found}")
    labels = _labels(tensors.pop("header").tobytes())
    sizes = {"V": len(tensors["buckets"]), "L": len(labels), "F": len(FAMILIES), "1": 1}
    for name, tensor in tensors.items():
        shape = tuple(sizes[dimension] for dimension in _TENSORS[name][1])
        if tensor.shape != shape:
            raise ClassifierInvalid(f"{name} has shape {tensor.shape}, expected {shape}")
    _check_values(tensors)
    return LinearModel(labels, **{**tensors, "temperature": float(tensors["temperature"][0])})


def _labels(header: bytes) -> tuple[str, ...]:
    try:
        fields = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise ClassifierInvalid(f"the header is not JSON: {error}") from error
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise ClassifierInvalid(f"the header must state the format {FORMAT}")
    labels = fields.get("labels")
    if not isinstance(labels, list) or not all(isinstance(label, str) and label for label in labels):
        raise ClassifierInvalid("labels must be a list of names")
    if not 2 <= len(labels) <= MAX_LABELS or len(set(labels)) < len(labels):
        raise ClassifierInvalid(f"labels must be 2 to {MAX_LABELS} distinct names, got {labels!r:.200}")
    return tuple(labels)


def _check_values(tensors: dict[str, Any]) -> None:
    for name in ("rarity", "weights", "bias", "family_scale", "temperature"):
        if not np.isfinite(tensors[name].astype(np.float32)).all():
            raise ClassifierInvalid(f"{name} must contain only finite numbers")
    buckets = tensors["buckets"].astype(np.int64)
    if not 1 <= len(buckets) <= MAX_FEATURES or buckets[-1] >= MAX_FEATURES or (np.diff(buckets) <= 0).any():
        raise ClassifierInvalid(f"buckets must be in ascending order and below {MAX_FEATURES}")
    temperature = float(tensors["temperature"][0])
    if not (isfinite(temperature) and temperature > 0):
        raise ClassifierInvalid(f"temperature must be positive, got {temperature}")
