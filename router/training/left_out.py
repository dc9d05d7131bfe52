"""What a model says about sources it was not trained on: the ground for its calibration and for every choice."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from router.training.fit import DEFAULT_RECIPE, Recipe, fit, uncalibrated_probabilities
from router.training.records import Record

FOLDS = 6


class TooFewSources(ValueError):
    """Nothing can be left out: calibration on text that was trained on would be a lie."""


def folds_of(records: Sequence[Record], most: int = FOLDS) -> list[frozenset[str]]:
    """The sources in at most so many groups of about the same size, by name and size alone."""
    sizes = Counter(record.source for record in records)
    if len(sizes) < 2:
        raise TooFewSources(f"training needs at least 2 sources to leave one out, got {sorted(sizes)}")
    groups: list[list[str]] = [[] for _ in range(min(most, len(sizes)))]
    for source in sorted(sizes, key=lambda name: (-sizes[name], name)):
        min(groups, key=lambda group: sum(sizes[name] for name in group)).append(source)
    return [frozenset(group) for group in groups]


def left_out_probabilities(
    records: Sequence[Record], labels: tuple[str, ...], recipe: Recipe = DEFAULT_RECIPE, most: int = FOLDS
) -> NDArray[np.float64]:
    """[N, L] Each record as seen by a model that knows no record of its source."""
    out = np.zeros((len(records), len(labels)))
    for fold in folds_of(records, most):
        inside = np.array([record.source in fold for record in records])
        rest = [record for record in records if record.source not in fold]
        present = tuple(label for label in labels if any(record.label == label for record in rest))
        seen = uncalibrated_probabilities(
            fit(rest, present, recipe).model, [record for record in records if record.source in fold]
        )
        columns = np.array([labels.index(label) for label in present])
        out[np.ix_(np.flatnonzero(inside), columns)] = seen
    return out
