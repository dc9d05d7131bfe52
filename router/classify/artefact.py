"""The classifier's file: safetensors, so numbers and nothing that could run; named by its sha256."""

import hashlib
import json
from math import isfinite
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from router.classify.features import BUCKET_BITS, FAMILIES
from router.classify.linear import LinearClassifier, LinearModel

FORMAT = "octet-linear-1"
MAX_BYTES = 256 << 20
MAX_LABELS = 1024
MAX_FEATURES = 1 << BUCKET_BITS
SHAPES = {
    "buckets": (np.uint32, 1),
    "rarity": (np.float32, 1),
    "weights": (np.float16, 2),
    "bias": (np.float32, 1),
    "family_scale": (np.float32, 1),
    "temperature": (np.float32, 1),
    "header": (np.uint8, 1),
}
"""Each tensor's type and number of dimensions. `header` is JSON: the format and the labels."""


class ClassifierRefused(ValueError):
    """A file that is no classifier; says what is wrong with it."""


def to_bytes(model: LinearModel) -> bytes:
    """The same model always gives the same bytes."""
    header = json.dumps({"format": FORMAT, "labels": model.labels}).encode()
    return save_tensors(
        {
            "buckets": model.buckets,
            "rarity": model.rarity,
            "weights": np.ascontiguousarray(model.weights),
            "bias": model.bias,
            "family_scale": model.family_scale,
            "temperature": np.array([model.temperature], dtype=np.float32),
            "header": np.frombuffer(header, dtype=np.uint8).copy(),
        }
    )


def from_bytes(data: bytes) -> LinearClassifier:
    """Raises ClassifierRefused."""
    if len(data) > MAX_BYTES:
        raise ClassifierRefused(f"{len(data)} bytes; a classifier has at most {MAX_BYTES}")
    return LinearClassifier(_model(_tensors(data)), hashlib.sha256(data).hexdigest())


def read_classifier(path: Path, *, digest: str | None = None) -> LinearClassifier:
    """Raises ClassifierRefused, also when the file is not the one with the digest that was asked for, or OSError."""
    classifier = from_bytes(path.read_bytes())
    if digest is not None and classifier.digest != digest:
        raise ClassifierRefused(f"{path} has sha256 {classifier.digest}, expected {digest}")
    return classifier


def _tensors(data: bytes) -> dict[str, NDArray[np.generic]]:
    try:
        tensors: dict[str, NDArray[np.generic]] = load_tensors(data)
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise ClassifierRefused(f"not a safetensors file: {error}") from error
    if set(tensors) != set(SHAPES):
        raise ClassifierRefused(f"tensors {sorted(tensors)}; a classifier has {sorted(SHAPES)}")
    for name, (dtype, dimensions) in SHAPES.items():
        if tensors[name].dtype != dtype or tensors[name].ndim != dimensions:
            found = f"{tensors[name].dtype} with {tensors[name].ndim} dimensions"
            raise ClassifierRefused(f"{name} is {found}; expected {np.dtype(dtype)} with {dimensions}")
    return tensors


def _model(tensors: dict[str, NDArray[np.generic]]) -> LinearModel:
    labels = _labels(tensors["header"].tobytes())
    num_features = len(tensors["buckets"])
    expected = {
        "buckets": (num_features,),
        "rarity": (num_features,),
        "weights": (num_features, len(labels)),
        "bias": (len(labels),),
        "family_scale": (len(FAMILIES),),
        "temperature": (1,),
    }
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise ClassifierRefused(f"{name} has shape {tensors[name].shape}; {len(labels)} labels need {shape}")
    _check_values(tensors)
    return LinearModel(
        labels,
        tensors["buckets"].astype(np.uint32),
        tensors["rarity"].astype(np.float32),
        tensors["weights"].astype(np.float16),
        tensors["bias"].astype(np.float32),
        tensors["family_scale"].astype(np.float32),
        float(tensors["temperature"][0]),
    )


def _labels(header: bytes) -> tuple[str, ...]:
    try:
        fields = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise ClassifierRefused(f"its header is not JSON: {error}") from error
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise ClassifierRefused(f"its header does not say {FORMAT}")
    labels = fields.get("labels")
    if not isinstance(labels, list) or not all(isinstance(label, str) and label for label in labels):
        raise ClassifierRefused("labels must be a list of names")
    if not 2 <= len(labels) <= MAX_LABELS or len(set(labels)) < len(labels):
        raise ClassifierRefused(f"labels must be 2 to {MAX_LABELS} different names, got {len(labels)}")
    return tuple(labels)


def _check_values(tensors: dict[str, NDArray[np.generic]]) -> None:
    for name in ("rarity", "weights", "bias", "family_scale", "temperature"):
        if not np.isfinite(tensors[name].astype(np.float32)).all():
            raise ClassifierRefused(f"{name} holds numbers that are not finite")
    buckets = tensors["buckets"].astype(np.int64)
    if not 1 <= len(buckets) <= MAX_FEATURES or buckets[-1] >= MAX_FEATURES or (np.diff(buckets) <= 0).any():
        raise ClassifierRefused(f"buckets must rise and stay below {MAX_FEATURES}")
    temperature = float(tensors["temperature"][0])
    if not (isfinite(temperature) and temperature > 0):
        raise ClassifierRefused(f"temperature must be positive, got {temperature}")
