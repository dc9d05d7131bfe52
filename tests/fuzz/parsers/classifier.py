"""A classifier small enough to damage byte by byte."""

import numpy as np

from router.classify.artefact import to_bytes
from router.classify.features import FAMILIES
from router.classify.linear import LinearModel

CLASSIFIER = to_bytes(
    LinearModel(
        ("build", "stl"),
        np.array([1, 5, 9], np.uint32),
        np.ones(3, np.float32),
        np.zeros((3, 2), np.float16),
        np.zeros(2, np.float32),
        np.ones(len(FAMILIES), np.float32),
        1.0,
    )
)
