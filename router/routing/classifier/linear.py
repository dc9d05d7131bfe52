"""The trained classifier and its file. Two linear models over the same hashed features: one chooses a specialist, the
other decides whether to reject. The file is in the safetensors format, which cannot contain code."""

import hashlib
import json
import threading
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

from router.routing.classifier.base import REJECT, Distribution, sample_text
from router.routing.classifier.features import BUCKET_BITS, FAMILIES, MAX_BATCH_BYTES, Features
from router.routing.classifier.reader import VIEW_FAMILIES, ViewBytes, encode_views, extract_view_features
from router.routing.normal_text import is_unicode

Floats = NDArray[np.float64]
DATA = Path(__file__).parents[2] / "data"
DEFAULT_FILE = DATA / "classifier.safetensors"  # the classifier for Octet's eight C++ specialists
_FORMATS = "octet-linear-"  # of all versions
FORMAT = f"{_FORMATS}3"
MAX_FILE_BYTES = 256 << 20
MAX_LABELS = 1024
MAX_LABEL_CHARS = 256
MAX_FEATURES = 1 << BUCKET_BITS
MIN_QUESTION_WORDS = 3  # known words that make a question
CODE_SHARE = 0.2  # weight of code and names beside a question, relative to code alone, for the choice of a specialist
_WORD = 0  # the index of the family of the question's words
_MAX_LOG_ODDS = 30.0
_MAX_HALF = np.float32(np.finfo(np.float16).max)
_NUM_VIEWS = len(VIEW_FAMILIES) // len(FAMILIES)
_TENSORS = {  # type and dimensions: V features, L labels, F families. `header` is JSON with the format and the labels.
    "buckets": (np.uint32, "V"),
    "rarity": (np.float32, "V"),
    "weights": (np.float16, "VL"),
    "bias": (np.float32, "L"),
    "family_scale": (np.float32, "F"),
    "reject_scale": (np.float32, "F"),
    "temperature": (np.float32, "1"),
    "header": (np.uint8, "H"),
}


@dataclass(frozen=True, slots=True)
class LinearModel:
    """The parameters of a trained classifier, as stored in its file: V features, L labels, F families of the views."""

    labels: tuple[str, ...]
    buckets: NDArray[np.uint32]  # [V] Ascending
    rarity: NDArray[np.float32]  # [V] Weight of a feature within its family, before the family is scaled
    weights: NDArray[np.float16]  # [V, L]
    bias: NDArray[np.float32]  # [L]
    family_scale: NDArray[np.float32]  # [F] Length to which each family is scaled, to choose a specialist
    reject_scale: NDArray[np.float32]  # [F] The same, to decide whether to reject
    temperature: float


class Terms(NamedTuple):
    """The features of a batch that the model knows, each once per prompt."""

    prompt: NDArray[np.intp]
    family: NDArray[np.uint8]
    row: NDArray[np.int32]
    value: Floats  # to choose a specialist
    reject_value: Floats  # to decide whether to reject: code and names count in full, as they show the language


class Vectorizer:
    """Maps samples to the features that the model knows, with their values."""

    def __init__(
        self,
        buckets: NDArray[np.uint32],
        rarity: NDArray[np.float32],
        family_scale: NDArray[np.float32],
        reject_scale: NDArray[np.float32],
        code_share: float = CODE_SHARE,
    ) -> None:
        self._code_share = code_share
        self._thread = threading.local()
        self._row_of = np.full(1 << BUCKET_BITS, -1, dtype=np.int32)
        self._row_of[buckets] = np.arange(len(buckets), dtype=np.int32)
        self._rarity = rarity.astype(np.float64)
        self._scale = family_scale.astype(np.float64)
        self._reject_scale = reject_scale.astype(np.float64)

    def terms(self, found: Features, num_prompts: int) -> Terms:
        prompt, family, row = self._known(found, num_prompts)
        value = self._rarity.take(row)
        at = family if num_prompts == 1 else prompt * len(VIEW_FAMILIES) + family
        squares = np.bincount(at, value * value, num_prompts * len(VIEW_FAMILIES))
        value /= np.sqrt(np.where(squares > 0, squares, 1)).take(at)
        chosen = value * self._scale.take(family)
        asks = np.bincount(prompt[family == _WORD], minlength=num_prompts) >= MIN_QUESTION_WORDS
        if asks.any():
            share = np.ones((num_prompts, len(VIEW_FAMILIES)))
            share[asks, len(FAMILIES) :] = self._code_share
            chosen *= share.ravel().take(at)
        return Terms(prompt, family, row, chosen, value * self._reject_scale.take(family))

    def _known(
        self, found: Features, num_prompts: int
    ) -> tuple[NDArray[np.intp], NDArray[np.uint8], NDArray[np.int32]]:
        row = self._row_of.take(found.bucket)
        known = np.flatnonzero(row >= 0)
        row, family = row.take(known), found.family.take(known)
        keys = row + (family // len(FAMILIES)) * np.int32(len(self._rarity))  # of the features of each view
        if num_prompts == 1:
            first = self._first_of_prompt(keys)
            return np.zeros(len(first), dtype=np.intp), family.take(first), row.take(first)
        prompt = found.prompt.take(known)
        first = _first_of_each(prompt * (_NUM_VIEWS * len(self._rarity)) + keys)
        return prompt.take(first), family.take(first), row.take(first)

    def _first_of_prompt(self, keys: NDArray[np.int32]) -> NDArray[np.intp]:
        """Do what `_first_of_each` does, without sorting, for the keys of one prompt."""
        seen = getattr(self._thread, "seen", None)
        if seen is None:  # needs no clearing: all that is read was written just before
            seen = self._thread.seen = np.empty(_NUM_VIEWS * len(self._rarity), dtype=np.int32)
        places = np.arange(len(keys), dtype=np.int32)
        seen[keys[::-1]] = places[::-1]  # in reverse, because numpy keeps the last of several writes to an index
        return np.flatnonzero(seen.take(keys) == places)


def _first_of_each(keys: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return, in ascending order, the index of each key's first occurrence. The memory does not depend on the keys."""
    return np.sort(np.unique(keys, return_index=True)[1])


class LinearClassifier:
    def __init__(self, model: LinearModel, digest: str) -> None:
        self.digest = digest
        self.labels = model.labels
        self._vectorizer = Vectorizer(model.buckets, model.rarity, model.family_scale, model.reject_scale)
        self._weights = model.weights.astype(np.float32)  # [V, L]
        self._bias = model.bias.astype(np.float64)
        self._temperature = model.temperature
        self._reject = reject_column(model.labels)

    def classify(self, texts: Sequence[str]) -> list[Distribution]:
        prompts = [encode_views(sample_text(text)) for text in texts]
        rows = (row for batch in _batches(prompts) for row in self.probabilities(batch).tolist())
        return [Distribution.of(zip(self.labels, row, strict=True)) for row in rows]

    def probabilities(self, prompts: Sequence[ViewBytes]) -> Floats:
        """Return the probability of each label for each prompt, shape [N, L]."""
        return self.feature_probabilities(extract_view_features(prompts), len(prompts))

    def feature_probabilities(self, found: Features, num_prompts: int) -> Floats:
        return label_probabilities(self.feature_logits(found, num_prompts), self._reject)

    def feature_logits(self, found: Features, num_prompts: int) -> Floats:
        terms = self._vectorizer.terms(found, num_prompts)
        weights = self._weights.take(terms.row, axis=0)
        shares = weights * terms.value[:, None]  # [T, L]
        if self._reject is not None:
            shares[:, self._reject] = weights[:, self._reject] * terms.reject_value
        if num_prompts > 1:
            shares = shares[np.argsort(terms.prompt, kind="stable")]
        ends = np.cumsum(np.bincount(terms.prompt, minlength=num_prompts))
        return (_sums(shares, ends) + self._bias) / self._temperature


def _sums(shares: Floats, ends: NDArray[np.intp]) -> Floats:
    """Return the sum of each prompt's rows, shape [N, L]. The order of addition does not depend on the batch."""
    if len(ends) == 1 and len(shares):
        return np.asarray(np.add.reduceat(shares, [0], axis=0))
    starts = np.concatenate([[0], ends[:-1]])
    filled = starts < ends
    sums = np.zeros((len(ends), shares.shape[1]))
    if filled.any():
        sums[filled] = np.add.reduceat(shares, starts[filled], axis=0)
    return sums


def reject_column(labels: Sequence[str]) -> int | None:
    return labels.index(REJECT) if REJECT in labels else None


def label_probabilities(logits: Floats, reject: int | None) -> Floats:
    """Return the probability of each label, shape [N, L]. The logit of `reject` is its log odds; the specialists share
    the rest by the softmax of theirs."""
    if reject is None:
        return softmax(logits)
    rejected = 1 / (1 + np.exp(-np.minimum(np.maximum(logits[:, reject], -_MAX_LOG_ODDS), _MAX_LOG_ODDS)))
    others = softmax(np.concatenate((logits[:, :reject], logits[:, reject + 1 :]), axis=1)) * (1 - rejected)[:, None]
    return np.concatenate((others[:, :reject], rejected[:, None], others[:, reject:]), axis=1)


def softmax(logits: Floats) -> Floats:
    """Return probabilities, shape [N, L]. The order of addition does not depend on the batch."""
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    total = raised[:, 0].copy()
    for column in raised.T[1:]:
        total += column
    return np.asarray(raised / total[:, None])


def _batches(prompts: Sequence[ViewBytes]) -> Iterator[Sequence[ViewBytes]]:
    start, size = 0, 1
    for at, views in enumerate(prompts):
        added = sum(map(len, views)) + len(views)
        if size + added > MAX_BATCH_BYTES:
            yield prompts[start:at]
            start, size = at, 1
        size += added
    if start < len(prompts):
        yield prompts[start:]


class ClassifierInvalid(ValueError):
    """The file is invalid; the message states why."""


def to_half(weights: NDArray[np.float32]) -> NDArray[np.float16]:
    """Return the weights in half precision. Those that are too large for it become the largest that it has."""
    return weights.clip(-_MAX_HALF, _MAX_HALF).astype(np.float16)


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
    header = _read_header(tensors)  # first, because other formats have other tensors
    if set(tensors) != set(_TENSORS):
        raise ClassifierInvalid(f"the tensors must be {sorted(_TENSORS)}, got {sorted(tensors)}")
    for name, (dtype, dimensions) in _TENSORS.items():
        if tensors[name].dtype != dtype or tensors[name].ndim != len(dimensions):
            found = f"{tensors[name].dtype} with {tensors[name].ndim} dimensions"
            raise ClassifierInvalid(f"{name} must be {np.dtype(dtype)} with {len(dimensions)} dimensions, got {found}")
    del tensors["header"]
    labels = _labels(header)
    sizes = {"V": len(tensors["buckets"]), "L": len(labels), "F": len(VIEW_FAMILIES), "1": 1}
    for name, tensor in tensors.items():
        shape = tuple(sizes[dimension] for dimension in _TENSORS[name][1])
        if tensor.shape != shape:
            raise ClassifierInvalid(f"{name} has shape {tensor.shape}, expected {shape}")
    _check_values(tensors)
    return LinearModel(labels, **{**tensors, "temperature": float(tensors["temperature"][0])})


def _read_header(tensors: dict[str, Any]) -> dict[str, Any]:
    if "header" not in tensors:
        raise ClassifierInvalid(
            f"the file has no header among its tensors {sorted(tensors)!r:.200}; is it a classifier?"
        )
    try:
        fields = json.loads(tensors["header"].tobytes())
    except (ValueError, RecursionError) as error:
        raise ClassifierInvalid(f"the header is not JSON: {error}") from error
    found = fields.get("format") if isinstance(fields, dict) else None
    if not isinstance(fields, dict) or found != FORMAT:
        again = "; train it again with `octet router train`" if str(found).startswith(_FORMATS) else ""
        raise ClassifierInvalid(f"the file has the format {found!r:.60}, this version of Octet reads {FORMAT}{again}")
    return fields


def _labels(header: dict[str, Any]) -> tuple[str, ...]:
    labels = header.get("labels")
    if not isinstance(labels, list) or not all(isinstance(label, str) and label for label in labels):
        raise ClassifierInvalid("labels must be a list of names")
    if any(len(label) > MAX_LABEL_CHARS or not is_unicode(label) for label in labels):
        raise ClassifierInvalid(f"labels must be valid Unicode of at most {MAX_LABEL_CHARS} characters")
    if not 2 <= len(labels) <= MAX_LABELS or len(set(labels)) < len(labels):
        raise ClassifierInvalid(f"labels must be 2 to {MAX_LABELS} distinct names, got {labels!r:.200}")
    return tuple(labels)


def _check_values(tensors: dict[str, Any]) -> None:
    for name in ("rarity", "weights", "bias", "family_scale", "reject_scale", "temperature"):
        if not np.isfinite(tensors[name].astype(np.float32)).all():
            raise ClassifierInvalid(f"{name} must contain only finite numbers")
    buckets = tensors["buckets"].astype(np.int64)
    if not 1 <= len(buckets) <= MAX_FEATURES or buckets[-1] >= MAX_FEATURES or (np.diff(buckets) <= 0).any():
        raise ClassifierInvalid(f"buckets must be in ascending order and below {MAX_FEATURES}")
    temperature = float(tensors["temperature"][0])
    if not (isfinite(temperature) and temperature > 0):
        raise ClassifierInvalid(f"temperature must be positive, got {temperature}")
