"""A classifier file is refused with a reason if it is truncated or corrupt, has a wrong shape, or contains values that
are not finite."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from router.routing.classifier.linear import DEFAULT_FILE, ClassifierInvalid, decode_model, read_classifier
from router.routing.classifier.reader import VIEW_FAMILIES

GOOD = DEFAULT_FILE.read_bytes()
DIGEST = hashlib.sha256(GOOD).hexdigest()


def small() -> dict[str, np.ndarray]:
    header = json.dumps({"format": "octet-linear-3", "labels": ["a", "b", "reject"]}).encode()
    return {
        "buckets": np.array([3, 70, 900], dtype=np.uint32),
        "rarity": np.ones(3, dtype=np.float32),
        "weights": np.ones((3, 3), dtype=np.float16),
        "bias": np.zeros(3, dtype=np.float32),
        "family_scale": np.ones(len(VIEW_FAMILIES), dtype=np.float32),
        "reject_scale": np.ones(len(VIEW_FAMILIES), dtype=np.float32),
        "temperature": np.ones(1, dtype=np.float32),
        "header": np.frombuffer(header, dtype=np.uint8).copy(),
    }


def test_the_digest_is_computed_from_the_file() -> None:
    assert read_classifier(DEFAULT_FILE, digest=DIGEST).digest == DIGEST
    with pytest.raises(ClassifierInvalid, match="expected 0000"):
        read_classifier(DEFAULT_FILE, digest="0000")


def test_the_default_file_is_small() -> None:
    assert len(GOOD) < 5 << 20


@given(st.integers(0, len(GOOD) - 1))
@settings(max_examples=30)
def test_a_truncated_file_is_refused(length: int) -> None:
    with pytest.raises(ClassifierInvalid):
        decode_model(GOOD[:length])


@given(st.integers(0, len(save(small())) * 8 - 1))
@settings(max_examples=200)
def test_a_flipped_bit_is_refused_or_gives_another_digest_and_valid_results(bit: int) -> None:
    data = bytearray(save(small()))
    whole = hashlib.sha256(data).hexdigest()
    data[bit // 8] ^= 1 << bit % 8
    try:
        classifier = decode_model(bytes(data))
    except ClassifierInvalid:
        return
    assert classifier.digest != whole
    assert len(classifier.classify(["some text"])[0].scores) == 3


def bent(name: str, value: np.ndarray) -> bytes:
    return save({**small(), name: value})


def header(**fields: object) -> np.ndarray:
    return np.frombuffer(json.dumps(fields).encode(), dtype=np.uint8).copy()


WRONG: dict[str, tuple[str, np.ndarray, str]] = {
    "nan": ("weights", np.full((3, 3), np.nan, dtype=np.float16), "finite"),
    "infinite": ("rarity", np.full(3, np.inf, dtype=np.float32), "finite"),
    "rows": ("weights", np.ones((2, 3), dtype=np.float16), "shape"),
    "columns": ("weights", np.ones((3, 2), dtype=np.float16), "shape"),
    "dimensions": ("weights", np.ones(9, dtype=np.float16), "dimensions"),
    "type": ("weights", np.ones((3, 3), dtype=np.float32), "float16"),
    "falling": ("buckets", np.array([3, 2, 900], dtype=np.uint32), "ascend"),
    "twice": ("buckets", np.array([3, 3, 900], dtype=np.uint32), "ascend"),
    "outside": ("buckets", np.array([3, 4, 1 << 20], dtype=np.uint32), "below"),
    "families": ("family_scale", np.ones(3, dtype=np.float32), "shape"),
    "families of reject": ("reject_scale", np.ones(3, dtype=np.float32), "shape"),
    "cold": ("temperature", np.zeros(1, dtype=np.float32), "positive"),
    "no json": ("header", np.frombuffer(b"{", dtype=np.uint8).copy(), "JSON"),
    "format": ("header", header(format="other", labels=["a", "b", "c"]), "octet-linear-3"),
    "same labels": ("header", header(format="octet-linear-3", labels=["a", "a", "c"]), "distinct"),
    "one label": ("header", header(format="octet-linear-3", labels=["a"]), "distinct"),
    "labels": ("header", header(format="octet-linear-3", labels=[1, 2, 3]), "names"),
    "long label": ("header", header(format="octet-linear-3", labels=["a", "b" * 257, "c"]), "at most 256"),
    "half a character": ("header", header(format="octet-linear-3", labels=["a", "\ud800", "c"]), "Unicode"),
    "fewer labels": ("header", header(format="octet-linear-3", labels=["a", "b"]), "shape"),
    "extra": ("more", np.ones(1, dtype=np.float32), "tensors"),
}


@pytest.mark.parametrize("case", WRONG)
def test_every_defect_is_named(case: str) -> None:
    name, value, why = WRONG[case]
    with pytest.raises(ClassifierInvalid, match=why):
        decode_model(bent(name, value))


@given(st.integers(0, 99).filter(lambda version: version != 3), st.sets(st.sampled_from(sorted(small())[:-1])))
def test_a_file_of_another_version_is_told_to_train_again(version: int, others: set[str]) -> None:
    """Whatever its tensors are: another version may have others."""
    kept = {name: value for name, value in small().items() if name not in others}
    kept["header"] = header(format=f"octet-linear-{version}", labels=["a", "b"])
    message = f"format 'octet-linear-{version}', this version of Octet reads octet-linear-3; train it again"
    with pytest.raises(ClassifierInvalid, match=message):
        decode_model(save(kept))


def test_a_file_without_a_header_is_no_classifier() -> None:
    tensors = small()
    del tensors["header"]
    with pytest.raises(ClassifierInvalid, match="no header"):
        decode_model(save(tensors))


def test_a_missing_tensor_is_refused() -> None:
    tensors = small()
    del tensors["bias"]
    with pytest.raises(ClassifierInvalid, match="tensors"):
        decode_model(save(tensors))


def test_a_missing_file_raises_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_classifier(tmp_path / "none")


def test_the_small_sample_file_is_valid() -> None:
    assert set(load(save(small()))) == set(small())
    assert decode_model(save(small())).labels == ("a", "b", "reject")
