"""Routes by likeness to the specialists' own descriptions and examples, where no classifier was trained.

Every text becomes a vector of its words, word pairs, letter groups and punctuation, of which the rare ones and those of
few specialists weigh most. A specialist is as near as its nearest text, averaged with all of its texts together; what
is near to nobody is rejected.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octet.identity import digest_of
from router.classify.base import REJECT, Distribution
from router.classify.features import BUCKET_BITS, FAMILIES, extract
from router.classify.sample import sample

MAX_BYTES = 1 << 19
"""Of all texts together, each cut to its sample. Who has more to show trains a classifier."""

_VERSION = b"octet examples 1"
_FAMILY_SHARE = {"word": 1.0, "pair": 0.3, "letters": 1.0, "punctuation": 0.2}
_UNKNOWN_WEIGHT = 0.6
"""Of a feature that no specialist's text has, against one that a single text has."""
_DULL_WEIGHT = 0.15
"""Of what stands in any text whatever it is about."""
_TOGETHER_SHARE = 0.3
"""Of all the texts of a specialist together; the nearest one has the rest."""
_REJECT_LIKENESS = 0.05
"""A specialist less like the text than this is less likely than nobody."""
_FLOOR = 0.01
"""Likeness that counts as chance."""
_POWER = 2.5
"""Odds are the likenesses to this power: set, like the figures above, for the least loss on prompts of three fields."""

_DULL = """
a about above after again all also am an and another any anybody anything are as ask at away back be because been
before begin being below between both but by can cannot could did do does doing don done down during each else ever
every explain few for from get gets give given go goes going good got had has have having he hello help her here hi
him his how i if in instead into is it its just keep know last less let like list little long look made make makes
many may me mean means might more morning most much must my need needs never new next no not nothing now of off often
on once one only or other our out over own per please put really right same say see shall she should show since so
some something still such take tell than thank thanks that the their them then there these they thing think this those
through time to today too try two under until up upon us use used using very want wants was way we well were what when
where whether which while who whom whose why will with within without work would write yes yet you your
"""

Texts = tuple[str, Sequence[str]]
"""A description and examples; either may be empty."""
Buckets = NDArray[np.uint32]
Floats = NDArray[np.float64]


class ExamplesClassifier:
    """A specialist without any text gets nothing."""

    def __init__(self, specialists: Mapping[str, Texts]) -> None:
        """Raises ValueError when the texts are more than MAX_BYTES."""
        self.digest = digest_of(_identity(specialists)).hex()
        self.labels = (*specialists, REJECT)
        texts = [
            (name, text)
            for name, (describe, examples) in specialists.items()
            for text in _all(name, describe, examples)
        ]
        self._told = tuple(dict.fromkeys(name for name, _ in texts))
        self._likeness = _Likeness([self._told.index(name) for name, _ in texts], _samples(texts)) if texts else None

    def classify(self, texts: Sequence[str]) -> list[Distribution]:
        return [self._classify(text) for text in texts]

    def _classify(self, text: str) -> Distribution:
        odds = dict.fromkeys(self.labels, 0.0)
        odds[REJECT] = (_REJECT_LIKENESS + _FLOOR) ** _POWER
        if self._likeness is not None:
            likeness = self._likeness.to(sample(text))
            odds |= zip(self._told, ((likeness + _FLOOR) ** _POWER).tolist(), strict=True)
        total = sum(odds.values())
        return Distribution.of((label, chance / total) for label, chance in odds.items())


def _identity(specialists: Mapping[str, Texts]) -> Iterator[bytes]:
    yield _VERSION
    for name, (describe, examples) in specialists.items():
        yield digest_of(text.encode("utf-8", "replace") for text in (name, describe, *examples))


def _all(name: str, describe: str, examples: Sequence[str]) -> Iterator[str]:
    """The name describes too, where anything does."""
    if describe or examples:
        yield f"{name}: {describe}"
    yield from examples


def _samples(texts: Sequence[tuple[str, str]]) -> list[bytes]:
    samples = [sample(text) for _, text in texts]
    if (size := sum(map(len, samples))) > MAX_BYTES:
        raise ValueError(
            f"descriptions and examples of {size} bytes are more than {MAX_BYTES}: train a classifier on them"
        )
    return samples


class _Seen(NamedTuple):
    """The features of a text, each once, by bucket."""

    bucket: Buckets
    family: NDArray[np.uint8]
    times: NDArray[np.intp]


def _see(text: bytes) -> _Seen:
    found = extract([text])
    bucket, first, times = np.unique(found.bucket, return_index=True, return_counts=True)
    return _Seen(bucket, found.family[first], times)


class _Likeness:
    """How like a text is to each specialist's: 0 for nothing in common, 1 for the same."""

    def __init__(self, owners: Sequence[int], samples: Sequence[bytes]) -> None:
        """A sample's owner is its specialist's number; every specialist up to the last one has a sample."""
        self._num_owners = max(owners) + 1
        self._owners = np.array(owners)
        seen = [_see(text) for text in samples]
        self._weights = _weights(owners, seen)
        vectors = [(each.bucket, self._vector(each)) for each in seen]
        self._table = _Table(vectors + [self._together(vectors, owner) for owner in range(self._num_owners)])

    def to(self, text: bytes) -> Floats:
        """[specialists]"""
        seen = _see(text)
        likeness = self._table.dot(seen.bucket, self._vector(seen))
        nearest = np.zeros(self._num_owners)
        np.maximum.at(nearest, self._owners, likeness[: len(self._owners)])
        return _TOGETHER_SHARE * likeness[len(self._owners) :] + (1 - _TOGETHER_SHARE) * nearest

    def _vector(self, seen: _Seen) -> Floats:
        """Of length 1 at most, shared out among the families."""
        raw = self._weights[seen.bucket] * (1 + np.log(seen.times))
        squares = np.bincount(seen.family, weights=raw * raw, minlength=len(FAMILIES))
        shares = np.array([_FAMILY_SHARE[family] for family in FAMILIES])
        scale = shares / np.sqrt(np.where(squares > 0, squares, 1) * (shares * shares).sum())
        return np.asarray(raw * scale[seen.family])

    def _together(self, vectors: Sequence[tuple[Buckets, Floats]], owner: int) -> tuple[Buckets, Floats]:
        own = [vector for vector, whose in zip(vectors, self._owners, strict=True) if whose == owner]
        bucket, place = np.unique(np.concatenate([bucket for bucket, _ in own]), return_inverse=True)
        total = np.bincount(place, weights=np.concatenate([value for _, value in own]))
        return bucket, total / np.sqrt((total * total).sum() or 1)


def _weights(owners: Sequence[int], seen: Sequence[_Seen]) -> Floats:
    """[buckets] Rare in texts times rare in specialists; what is in no text weighs like something rare, only less."""
    num_owners = max(owners) + 1
    weights = np.full(1 << BUCKET_BITS, _UNKNOWN_WEIGHT * np.log(1 + len(seen)))
    buckets, num_texts = np.unique(np.concatenate([each.bucket for each in seen]), return_counts=True)
    num_specialists = np.zeros(len(buckets))
    for owner in range(num_owners):
        own = np.concatenate([each.bucket for each, whose in zip(seen, owners, strict=True) if whose == owner])
        num_specialists += np.isin(buckets, own)
    spread = np.log((num_owners + 1) / num_specialists) / np.log(num_owners + 1)
    weights[buckets] = np.log(1 + len(seen) / num_texts) * spread
    weights[np.unique(extract(_DULL.encode().split()).bucket)] *= _DULL_WEIGHT
    return weights


class _Table:
    """Sparse vectors, sorted by bucket: a text looks only at the buckets that it has."""

    def __init__(self, vectors: Iterable[tuple[Buckets, Floats]]) -> None:
        rows = list(vectors)
        self._num_rows = len(rows)
        bucket = np.concatenate([bucket for bucket, _ in rows])
        order = np.argsort(bucket, kind="stable")
        self._bucket = bucket[order]
        self._row = np.repeat(np.arange(len(rows), dtype=np.int32), [len(bucket) for bucket, _ in rows])[order]
        self._value = np.concatenate([value for _, value in rows])[order]

    def dot(self, bucket: Buckets, value: Floats) -> Floats:
        """[rows]"""
        start = np.searchsorted(self._bucket, bucket, side="left")
        count = np.searchsorted(self._bucket, bucket, side="right") - start
        before = np.cumsum(count) - count
        at = np.repeat(start - before, count) + np.arange(count.sum())
        products = self._value[at] * np.repeat(value, count)
        return np.asarray(np.bincount(self._row[at], weights=products, minlength=self._num_rows), dtype=np.float64)
