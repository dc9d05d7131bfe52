"""A classifier small enough to be damaged byte by byte."""

import numpy as np

from router.routing.classifier.linear import LinearModel, encode_model
from router.routing.classifier.reader import VIEW_FAMILIES

CLASSIFIER = encode_model(
    LinearModel(
        ("build", "stl"),
        np.array([1, 5, 9], np.uint32),
        np.ones(3, np.float32),
        np.zeros((3, 2), np.float16),
        np.zeros(2, np.float32),
        np.ones(len(VIEW_FAMILIES), np.float32),
        np.ones(len(VIEW_FAMILIES), np.float32),
        1.0,
    )
)
