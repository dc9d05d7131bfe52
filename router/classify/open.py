"""The classifier that an ensemble asks for."""

import logging
from pathlib import Path

from octet.config.ensemble import BUILT_IN_CLASSIFIER, Ensemble
from router.classify.base import REJECT, Classifier
from router.classify.examples import ExamplesClassifier

_log = logging.getLogger(__name__)


class ClassifierMismatch(ValueError):
    """A trained classifier that would send prompts to specialists which the ensemble does not have."""

    def __init__(self, path: str, strangers: tuple[str, ...], ensemble: Ensemble) -> None:
        self.strangers = strangers
        super().__init__(
            f"classifier.path {path}: it was trained for {', '.join(strangers)}, which the ensemble {ensemble.name} "
            f"does not have (it has {', '.join(ensemble.names)}); train one for it, or leave the path out to route by "
            "descriptions and examples"
        )


def open_classifier(ensemble: Ensemble) -> Classifier:
    """Raises ClassifierMismatch, ValueError for texts too long or a file that is no classifier, OSError."""
    path = ensemble.classifier.path
    if path is None:
        texts = {specialist.name: (specialist.describe, specialist.examples) for specialist in ensemble.specialists}
        return ExamplesClassifier(texts)
    classifier = _trained(path)
    if strangers := tuple(label for label in classifier.labels if label not in (*ensemble.names, REJECT)):
        raise ClassifierMismatch(path, strangers, ensemble)
    if unknown := [name for name in ensemble.names if name not in classifier.labels]:
        _log.warning("the classifier does not know %s: reached by rule, intent or force only", ", ".join(unknown))
    return classifier


def _trained(path: str) -> Classifier:
    if path == BUILT_IN_CLASSIFIER:
        from router.classify.default import load_default

        return load_default()
    from router.classify.artefact import read_classifier

    return read_classifier(Path(path))
