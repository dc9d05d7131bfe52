"""The classifier that comes with Octet, for its eight C++ specialists."""

from pathlib import Path

from router.classify.artefact import read_classifier
from router.classify.base import Classifier

DATA = Path(__file__).parents[1] / "data"
DEFAULT_FILE = DATA / "classifier.safetensors"


def load_default() -> Classifier:
    """Raises ClassifierRefused or OSError."""
    return read_classifier(DEFAULT_FILE)
