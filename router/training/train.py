"""Training in one call: leave sources out, fit the temperature on them, then fit on everything."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from router.classify.artefact import to_bytes
from router.classify.base import REJECT
from router.training.calibrate import fit_temperature
from router.training.fit import DEFAULT_RECIPE, Fitted, Recipe, calibrated, fit
from router.training.left_out import left_out_probabilities
from router.training.records import Record


@dataclass(frozen=True, slots=True)
class Trained:
    data: bytes
    """The classifier's file."""
    fitted: Fitted
    temperature: float
    left_out_top1: float
    """The share of prompts that a model which knew nothing of their source put right."""


def labels_of(records: Sequence[Record]) -> tuple[str, ...]:
    """In the order in which they first come; reject last."""
    found = tuple(dict.fromkeys(record.label for record in records if record.label != REJECT))
    return (*found, REJECT) if any(record.label == REJECT for record in records) else found


def train(records: Sequence[Record], recipe: Recipe = DEFAULT_RECIPE) -> Trained:
    """Deterministic: the same records give the same bytes. Raises TooFewSources, TrainingUnavailable."""
    labels = labels_of(records)
    truth = np.array([labels.index(record.label) for record in records], dtype=np.intp)
    unseen = left_out_probabilities(records, labels, recipe)
    prompts = np.array([record.is_prompt for record in records])
    temperature = fit_temperature(unseen[prompts], truth[prompts])
    fitted = fit(records, labels, recipe)
    top1 = float((unseen[prompts].argmax(axis=1) == truth[prompts]).mean())
    return Trained(to_bytes(calibrated(fitted.model, temperature)), fitted, temperature, top1)
