"""What a classifier sees of a question, as sparse numbers that an offline training can read again."""

import numpy as np

from router.classify.features import BUCKET_BITS, FAMILIES, extract
from router.classify.sample import sample

MOST = 2000
_WORTH = tuple(FAMILIES.index(name) for name in ("word", "punctuation", "pair", "letters"))
"""Which family is left out last."""


def features(question: str) -> tuple[list[int], list[float]]:
    """Indices in rising order, and how often each feature comes. An index is the family's number, shifted by
    BUCKET_BITS, and the bucket. Of more than MOST the least telling families are thinned out, evenly: a bucket is a
    hash."""
    found = extract([sample(question)])
    indices = (found.family.astype(np.uint32) << np.uint32(BUCKET_BITS)) | found.bucket
    known, times = np.unique(indices, return_counts=True)
    if len(known) > MOST:
        rank = np.argsort(_WORTH)[known >> BUCKET_BITS]
        chosen = np.sort(np.argsort(rank, kind="stable")[:MOST])
        known, times = known[chosen], times[chosen]
    return known.tolist(), times.astype(float).tolist()
