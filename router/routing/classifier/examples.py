"""Classification by similarity to the specialists' descriptions and examples, without training.

A text becomes a vector of words, word pairs, letter groups and punctuation. Features that are rare, or that few
specialists have, weigh most. A specialist's score combines the similarity of its nearest text with that of all its
texts together. A text that is similar to no specialist is rejected.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octet.config.ensemble import REJECT
from octet.identity import digest_parts
from router.routing.classifier.base import Distribution, sample_text
from router.routing.classifier.features import BUCKET_BITS, FAMILIES, extract_features

MAX_EXAMPLE_BYTES = 1 << 19  # maximum bytes of all samples together; for more data, train a classifier

_VERSION = b"octet examples 1"
_FAMILY_SHARE = {"word": 1.0, "pair": 0.3, "letters": 1.0, "punctuation": 0.2}
_UNKNOWN_WEIGHT = 0.6  # weight of a feature that occurs in no text, relative to one in a single text
_STOP_WORD_WEIGHT = 0.15  # weight of features of stop words
_TOGETHER_SHARE = 0.3  # weight, in a specialist's score, of all its texts together; the nearest text has the rest
_REJECT_SIMILARITY = 0.05  # below this similarity a specialist is less likely than reject
_FLOOR = 0.01  # similarity that occurs by chance
_POWER = 2.5  # odds are similarities raised to this power. Like the constants above, fitted on prompts of three domains

_STOP_WORDS = """
a about above after again all also am an and another any anybody anything are as ask at away back be because been
before begin being below between both but by can cannot could did do does doing don done down during each else ever
every explain few for from get gets give given go goes going good got had has have having he hello help her here hi
him his how i if in instead into is it its just keep know last less let like list little long look made make makes
many may me mean means might more morning most much must my need needs never new next no not nothing now of off often
on once one only or other our out over own per please put really right same say see shall she should show since so
some something still such take tell than thank thanks that the their them then there these they thing think this those
through time to today too try two under until up upon us use used using very want wants was way we well were what when
where whether which while who whom index why will with within without work would write yes yet you your
"""

Texts = tuple[str, Sequence[str]]  # description and examples; either may be empty
Buckets = NDArray[np.uint32]
Floats = NDArray[np.float64]


class ExamplesClassifier:
    """Scores each specialist by the similarity of its texts to the given text; a specialist without texts gets 0."""

    def __init__(self, specialists: Mapping[str, Texts]) -> None:
        """Raises ValueError if the texts together exceed MAX_EXAMPLE_BYTES."""
        owners: list[int] = []  # the specialist of each sample, an index into `described`
        samples: list[bytes] = []
        described: list[str] = []
        identity = [_VERSION]
        for name, (describe, examples) in specialists.items():
            identity.append(digest_parts(text.encode("utf-8", "replace") for text in (name, describe, *examples)))
            if describe or examples:
                texts = (f"{name}: {describe}", *examples)
                owners += [len(described)] * len(texts)
                samples += map(sample_text, texts)
                described.append(name)
        if (size := sum(map(len, samples))) > MAX_EXAMPLE_BYTES:
            found = f"descriptions and examples have {size} bytes in total; the limit is {MAX_EXAMPLE_BYTES}"
            raise ValueError(f"{found}: train a classifier instead")
        self.digest = digest_parts(identity).hex()
        self.labels = (*specialists, REJECT)
        self._described = described
        self._similarity = _Similarity(owners, samples) if samples else None

    def classify(self, texts: Sequence[str]) -> list[Distribution]:
        return [self._classify(text) for text in texts]

    def _classify(self, text: str) -> Distribution:
        odds = dict.fromkeys(self.labels, 0.0)
        odds[REJECT] = (_REJECT_SIMILARITY + _FLOOR) ** _POWER
        if self._similarity is not None:
            similarity = self._similarity.to(sample_text(text))
            odds |= zip(self._described, ((similarity + _FLOOR) ** _POWER).tolist(), strict=True)
        total = sum(odds.values())
        return Distribution.of((label, chance / total) for label, chance in odds.items())


class _TextFeatures(NamedTuple):
    """The distinct features of a text, sorted by bucket."""

    bucket: Buckets
    family: NDArray[np.uint8]
    times: NDArray[np.intp]


def _text_features(text: bytes) -> _TextFeatures:
    found = extract_features([text])
    bucket, first, times = np.unique(found.bucket, return_index=True, return_counts=True)
    return _TextFeatures(bucket, found.family[first], times)


class _Similarity:
    """Computes the similarity of a text to each specialist, from 0 (nothing in common) to 1."""

    def __init__(self, owners: Sequence[int], samples: Sequence[bytes]) -> None:
        """`owners` holds the specialist's index for each sample. Every specialist has at least one sample."""
        self._num_owners = max(owners) + 1
        self._owners = np.array(owners)
        seen = [_text_features(text) for text in samples]
        self._weights = _weights(owners, seen)
        vectors = [(each.bucket, self._vector(each)) for each in seen]
        self._table = _SparseRows(vectors + [self._sum_texts(vectors, owner) for owner in range(self._num_owners)])

    def to(self, text: bytes) -> Floats:
        """Return the similarity to each specialist, shape [specialists]."""
        seen = _text_features(text)
        similarity = self._table.dot(seen.bucket, self._vector(seen))
        nearest = np.zeros(self._num_owners)
        np.maximum.at(nearest, self._owners, similarity[: len(self._owners)])
        return _TOGETHER_SHARE * similarity[len(self._owners) :] + (1 - _TOGETHER_SHARE) * nearest

    def _vector(self, seen: _TextFeatures) -> Floats:
        """Return the feature vector. Each family has its `_FAMILY_SHARE` of the vector's length, which is at most 1."""
        raw = self._weights[seen.bucket] * (1 + np.log(seen.times))
        squares = np.bincount(seen.family, weights=raw * raw, minlength=len(FAMILIES))
        shares = np.array([_FAMILY_SHARE[family] for family in FAMILIES])
        scale = shares / np.sqrt(np.where(squares > 0, squares, 1) * (shares * shares).sum())
        return np.asarray(raw * scale[seen.family])

    def _sum_texts(self, vectors: Sequence[tuple[Buckets, Floats]], owner: int) -> tuple[Buckets, Floats]:
        own = [vector for vector, index in zip(vectors, self._owners, strict=True) if index == owner]
        bucket, place = np.unique(np.concatenate([bucket for bucket, _ in own]), return_inverse=True)
        total = np.bincount(place, weights=np.concatenate([value for _, value in own]))
        return bucket, total / np.sqrt((total * total).sum() or 1)


def _weights(owners: Sequence[int], seen: Sequence[_TextFeatures]) -> Floats:
    """Return the weight of each bucket: its rarity among texts times its rarity among specialists."""
    num_owners = max(owners) + 1
    weights = np.full(1 << BUCKET_BITS, _UNKNOWN_WEIGHT * np.log(1 + len(seen)))
    buckets, num_texts = np.unique(np.concatenate([each.bucket for each in seen]), return_counts=True)
    num_specialists = np.zeros(len(buckets))
    for owner in range(num_owners):
        own = np.concatenate([each.bucket for each, index in zip(seen, owners, strict=True) if index == owner])
        num_specialists += np.isin(buckets, own)
    spread = np.log((num_owners + 1) / num_specialists) / np.log(num_owners + 1)
    weights[buckets] = np.log(1 + len(seen) / num_texts) * spread
    weights[np.unique(extract_features(_STOP_WORDS.encode().split()).bucket)] *= _STOP_WORD_WEIGHT
    return weights


class _SparseRows:
    """Sparse vectors, stored by bucket, so that `dot` reads only the buckets of its argument."""

    def __init__(self, vectors: Iterable[tuple[Buckets, Floats]]) -> None:
        rows = list(vectors)
        self._num_rows = len(rows)
        bucket = np.concatenate([bucket for bucket, _ in rows])
        order = np.argsort(bucket, kind="stable")
        self._bucket = bucket[order]
        self._row = np.repeat(np.arange(len(rows), dtype=np.int32), [len(bucket) for bucket, _ in rows])[order]
        self._value = np.concatenate([value for _, value in rows])[order]

    def dot(self, bucket: Buckets, value: Floats) -> Floats:
        """Return the dot product with each row, shape [rows]."""
        start = np.searchsorted(self._bucket, bucket, side="left")
        count = np.searchsorted(self._bucket, bucket, side="right") - start
        before = np.cumsum(count) - count
        at = np.repeat(start - before, count) + np.arange(count.sum())
        products = self._value[at] * np.repeat(value, count)
        return np.asarray(np.bincount(self._row[at], weights=products, minlength=self._num_rows), dtype=np.float64)
