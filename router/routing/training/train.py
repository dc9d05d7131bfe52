"""Train the linear classifier: fit, evaluate on left-out sources, calibrate. Needs SciPy, which comes with the extra
`train`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from octet.config.ensemble import REJECT
from octet.terminal import install_hint
from router.routing.classifier.base import sample_text
from router.routing.classifier.code_signs import CODE_SIGNS
from router.routing.classifier.features import FAMILIES, Features, extract_features
from router.routing.classifier.linear import (
    LinearClassifier,
    LinearModel,
    Terms,
    Vectorizer,
    encode_model,
    label_probabilities,
    reject_column,
    to_half,
)
from router.routing.classifier.named_languages import SIGNS
from router.routing.classifier.reader import encode_views, extract_view_features
from router.routing.training.calibration import (
    IDENTITY,
    Calibration,
    calibrate_logits,
    calibrate_model,
    fit_calibration,
)
from router.routing.training.records import LabelledPrompt
from router.routing.training.regression import RegressionSettings, softmax_regression

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


class TrainingUnavailable(RuntimeError):
    """The extra `train` is not installed."""


_MANY_RECORDS = 2000  # with fewer, no feature may be left out of a step
_CHOICE, _REJECTION = RegressionSettings(dropout=0.5), RegressionSettings(dropout=0.3)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Hyperparameters, chosen by cross-validation over the training sources, never on the held-out test sources."""

    family_scale: tuple[float, ...] = (1.0, 0.5, 1.0, 0.3, 0.7, 0.35, 0.7, 0.3, 0.7, 0.35, 0.3, 0.0)  # VIEW_FAMILIES
    reject_scale: tuple[float, ...] = (1.0, 0.5, 1.0, 0.3, 1.0, 0.5, 1.0, 0.3, 1.0, 0.35, 0.3, 0.0)
    min_prompts: int = 2  # features that occur in fewer prompts are dropped
    max_features: int = 200_000  # with more, those in few prompts are dropped too
    balance: float = 1.0  # 0: every prompt weighs the same; 1: every label does
    distracted: float = 0.5  # this share of the questions is also trained on beside the code of another prompt
    unknown: float = 0.08  # this share of the rejected prompts also teaches to reject a text of unknown words
    regression: RegressionSettings = _CHOICE
    reject_regression: RegressionSettings = _REJECTION


DEFAULT_RECIPE = Recipe()
_DISTRACTED_WEIGHT = 0.5
_TRAINED_CODE_SHARE = 0.4  # more than in use: with less, the fit makes up for it by larger weights of code
_MAX_OWN_CODE, _MIN_OTHER_CODE = 30, 80  # features of code: of a question with little, and of a prompt with much
_SIGN_RARITY = 12.0  # the weight of the words that stand for languages, whose frequency says nothing


def fit(records: Sequence[LabelledPrompt], labels: tuple[str, ...], recipe: Recipe = DEFAULT_RECIPE) -> LinearModel:
    """Fit without calibration: the temperature is 1."""
    found = list(map(record_features, records))
    accepted, weights = (
        accepted_labels(records, labels),
        np.array([record.weight for record in records], dtype=np.float32),
    )
    buckets, rarity = _vocabulary(found, recipe)
    scale = np.array(recipe.family_scale, dtype=np.float32)
    reject_scale = np.array(recipe.reject_scale, dtype=np.float32)
    vectorizer = Vectorizer(buckets, rarity, scale, reject_scale, _TRAINED_CODE_SHARE)
    if len(records) < _MANY_RECORDS:
        recipe = replace(
            recipe,
            regression=replace(recipe.regression, dropout=0.0),
            reject_regression=replace(recipe.reject_regression, dropout=0.0),
        )
    data = _TrainingData(found, accepted, weights)
    coefficients = np.zeros((len(buckets), len(labels)), dtype=np.float32)
    bias = np.zeros(len(labels), dtype=np.float32)
    reject = reject_column(labels)
    specialists = [column for column in range(len(labels)) if column != reject]
    coefficients[:, specialists], bias[specialists] = _fit_specialists(
        vectorizer, len(buckets), data, specialists, recipe
    )
    if reject is not None:
        coefficients[:, reject], bias[reject] = _fit_reject(vectorizer, len(buckets), data, reject, recipe)
    return LinearModel(labels, buckets, rarity, to_half(coefficients), bias, scale, reject_scale, 1.0)


@dataclass(frozen=True, slots=True)
class _TrainingData:
    found: list[Features]
    accepted: NDArray[np.float32]
    weights: NDArray[np.float32]


def _fit_specialists(
    vectorizer: Vectorizer, width: int, data: _TrainingData, columns: list[int], recipe: Recipe
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Fit the choice of a specialist to the prompts for which one is right. Without any, all are equally likely."""
    chosen = np.flatnonzero(data.accepted[:, columns].any(axis=1))
    if not len(chosen):
        return np.zeros((width, len(columns)), dtype=np.float32), np.zeros(len(columns), dtype=np.float32)
    found, accepted = [data.found[at] for at in chosen], list(data.accepted[np.ix_(chosen, np.array(columns))])
    weights = data.weights[chosen].tolist()
    for at, features in distract(found, recipe.distracted):
        found.append(features)
        accepted.append(accepted[at])
        weights.append(weights[at] * _DISTRACTED_WEIGHT)
    matrix = feature_matrix(vectorizer, found, width)
    right = np.array(accepted, dtype=np.float32)
    balanced = _balance(right, np.array(weights, dtype=np.float32), recipe.balance)
    return softmax_regression(matrix, right, balanced, recipe.regression)


def _fit_reject(
    vectorizer: Vectorizer, width: int, data: _TrainingData, reject: int, recipe: Recipe
) -> tuple[NDArray[np.float32], np.float32]:
    served, rejected = np.delete(data.accepted, reject, axis=1).any(axis=1), data.accepted[:, reject] > 0
    unknown = np.flatnonzero(rejected & ~served)
    unknown = unknown[:: round(1 / recipe.unknown)] if recipe.unknown else unknown[:0]
    terms = [vectorizer.terms(each, 1) for each in (*data.found, *(forget_words(data.found[at]) for at in unknown))]
    matrix = _sparse(terms, [each.reject_value for each in terms], width)
    right = np.stack([served, rejected], axis=1).astype(np.float32)
    right = np.concatenate([right, right[unknown]])
    balanced = _balance(right, np.concatenate([data.weights, data.weights[unknown]]), recipe.balance)
    coefficients, bias = softmax_regression(matrix, right, balanced, recipe.reject_regression)
    return coefficients[:, 1] - coefficients[:, 0], bias[1] - bias[0]


def forget_words(found: Features) -> Features:
    """Return the features of a text without any known word: only the signs of languages are left."""
    kept = np.isin(found.bucket, _SIGN_BUCKETS)
    return Features(found.prompt[kept], found.family[kept], found.bucket[kept])


def distract(found: Sequence[Features], share: float) -> list[tuple[int, Features]]:
    """Return questions beside the code of other prompts: the index of each question, and the features of both. A model
    learns from them that the question decides."""
    num_code = [int((each.family // len(FAMILIES) == 1).sum()) for each in found]
    num_question = [int((each.family < len(FAMILIES)).sum()) for each in found]
    questions = [at for at, num in enumerate(num_code) if num < _MAX_OWN_CODE and num_question[at]]
    codes = [at for at, num in enumerate(num_code) if num > _MIN_OTHER_CODE]
    if not questions or not codes:
        return []
    random = np.random.default_rng(1)
    chosen = random.choice(questions, int(share * len(questions)), replace=False)
    return [
        (int(at), _join(found[at], found[other]))
        for at, other in zip(chosen, random.choice(codes, len(chosen)), strict=True)
    ]


def _join(question: Features, code: Features) -> Features:
    """Return the features of the question of the one, with the code and the names of the other."""
    kept, added = question.family < len(FAMILIES), code.family >= len(FAMILIES)
    return Features(
        np.concatenate([question.prompt[kept], code.prompt[added]]),
        np.concatenate([question.family[kept], code.family[added]]),
        np.concatenate([question.bucket[kept], code.bucket[added]]),
    )


def accepted_labels(records: Sequence[LabelledPrompt], labels: tuple[str, ...]) -> NDArray[np.float32]:
    """Return 1 for each label that is right for the record, else 0, shape [records, labels]. Raises ValueError if a
    record has none of the labels."""
    found = np.zeros((len(records), len(labels)), dtype=np.float32)
    for row, record in zip(found, records, strict=True):
        row[[labels.index(label) for label in record.accepted if label in labels]] = 1
        if not row.any():
            raise ValueError(f"none of the labels {', '.join(record.accepted)} is among {', '.join(labels)}")
    return found


def _balance(accepted: NDArray[np.float32], weights: NDArray[np.float32], power: float) -> NDArray[np.float32]:
    """Return weights with which the labels weigh the same. Prompts with several labels do not count, but weigh as much
    as the mean of their labels."""
    certain = accepted.sum(axis=1) == 1
    totals = (accepted[certain] * weights[certain, None]).sum(axis=0)
    present = totals > 0
    factors = np.ones(accepted.shape[1])
    factors[present] = (totals[present].mean() / totals[present]) ** power
    return np.asarray(weights * (accepted @ factors) / accepted.sum(axis=1), dtype=np.float32)


def record_features(record: LabelledPrompt) -> Features:
    if record.features is not None:
        return record.features
    return extract_view_features([encode_views(sample_text(record.text))])


def _vocabulary(found: Sequence[Features], recipe: Recipe) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    buckets, num_prompts = np.unique(np.concatenate([np.unique(each.bucket) for each in found]), return_counts=True)
    least = recipe.min_prompts
    while (num_prompts >= least).sum() > recipe.max_features:
        least += 1
    kept = num_prompts >= least
    rarity = np.log((1 + len(found)) / (1 + num_prompts[kept])) + 1
    rarity[np.isin(buckets[kept], _SIGN_BUCKETS)] = _SIGN_RARITY
    return buckets[kept].astype(np.uint32), rarity.astype(np.float32)


_SIGN_BUCKETS = [  # the first feature is the word
    int(extract_features([sign.encode()]).bucket[0]) for sign in (*SIGNS, *CODE_SIGNS)
]


def feature_matrix(vectorizer: Vectorizer, found: Sequence[Features], width: int) -> "csr_matrix[Any]":
    """Return the features as they are weighted for the choice of a specialist, shape [len(found), width]. Each item of
    `found` has those of one prompt."""
    terms = [vectorizer.terms(each, 1) for each in found]
    return _sparse(terms, [each.value for each in terms], width)


def _sparse(terms: Sequence[Terms], values: Sequence[NDArray[np.float64]], width: int) -> "csr_matrix[Any]":
    try:
        from scipy.sparse import csr_matrix
    except ImportError as error:
        raise TrainingUnavailable(f"training needs SciPy: {install_hint('train')}") from error
    columns = np.concatenate([each.row for each in terms])
    ends = np.cumsum([0, *(len(each.row) for each in terms)])
    matrix = csr_matrix((np.concatenate(values).astype(np.float32), columns, ends), shape=(len(terms), width))
    matrix.sum_duplicates()  # and sorts, so that the order of the features does not matter
    return matrix


def uncalibrated_logits(model: LinearModel, records: Sequence[LabelledPrompt]) -> NDArray[np.float64]:
    classifier = LinearClassifier(model, "")
    return np.concatenate([classifier.feature_logits(record_features(record), 1) for record in records])


def prompt_probabilities(classifier: LinearClassifier, records: Sequence[LabelledPrompt]) -> NDArray[np.float64]:
    return np.concatenate([classifier.feature_probabilities(record_features(record), 1) for record in records])


NUM_FOLDS = 10  # with more families of sources, some are left out together


class TooFewLabels(ValueError):
    """There is nothing to choose between."""


class TooFewSources(ValueError):
    """There are too few records: calibration needs prompts that were not trained on."""


def source_families(records: Sequence[LabelledPrompt]) -> list[str]:
    """Return the family of each record's source: what precedes the first slash of its name. Sources of a family are
    left out together. If all records have one family, each becomes one, because nothing better can be left out."""
    families = [record.source.partition("/")[0] for record in records]
    if len(set(families)) > 1:
        return families
    return [f"{family}#{number}" for number, family in enumerate(families)]


def make_folds(
    records: Sequence[LabelledPrompt], families: Sequence[str], most: int = NUM_FOLDS
) -> list[frozenset[str]]:
    """Return at most `most` groups of families with similar numbers of records. Families without prompts are in no
    group, because nothing is measured on them. Deterministic."""
    measured = {family for family, record in zip(families, records, strict=True) if record.is_prompt}
    sizes = Counter(family for family in families if family in measured)
    if len(sizes) < 2:
        raise TooFewSources(f"training needs at least 2 sources, because one is held out; got {sorted(sizes)}")
    groups: list[list[str]] = [[] for _ in range(min(most, len(sizes)))]
    loads = [0] * len(groups)
    for family in sorted(sizes, key=lambda name: (-sizes[name], name)):
        lightest = loads.index(min(loads))
        groups[lightest].append(family)
        loads[lightest] += sizes[family]
    return [frozenset(group) for group in groups]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What models say about prompts whose family of sources they were not trained on."""

    labels: tuple[str, ...]
    logits: NDArray[np.float64]  # [records, labels] Not calibrated; 0 for a record that no model left out
    fold: NDArray[np.intp]  # [records] The number of the model; -1 for a record that no model left out
    accepted: NDArray[np.float32]  # [records, labels]
    is_measured: NDArray[np.bool_]  # [records] Whether the record is a prompt

    def fit(self, chosen: NDArray[np.bool_]) -> Calibration:
        """Return the calibration of the chosen prompts."""
        chosen = chosen & self.is_measured
        if not chosen.any():
            return IDENTITY
        return fit_calibration(self.logits[chosen], self.accepted[chosen], reject_column(self.labels))

    def probabilities(self) -> NDArray[np.float64]:
        """Return the probabilities, each calibrated on the other folds."""
        reject = reject_column(self.labels)
        out = label_probabilities(self.logits, reject)
        for number in np.unique(self.fold[self.fold >= 0]):
            inside = self.fold == number
            calibrated = calibrate_logits(self.logits[inside], self.fit(~inside), reject)
            out[inside] = label_probabilities(calibrated, reject)
        return out


def leave_out(
    records: Sequence[LabelledPrompt], labels: tuple[str, ...], recipe: Recipe = DEFAULT_RECIPE, most: int = NUM_FOLDS
) -> LeftOut:
    if len(labels) < 2:
        raise TooFewLabels(f"training needs at least 2 labels, one of them a specialist; got {', '.join(labels)}")
    families = source_families(records)
    logits, folds = np.zeros((len(records), len(labels))), np.full(len(records), -1, dtype=np.intp)
    for number, fold in enumerate(make_folds(records, families, most)):
        inside = np.array([family in fold for family in families])
        rest = [record for record, is_left_out in zip(records, inside, strict=True) if not is_left_out]
        left_out = [record for record, is_left_out in zip(records, inside, strict=True) if is_left_out]
        logits[inside] = uncalibrated_logits(fit(rest, labels, recipe), left_out)
        folds[inside] = number
    measured = np.array([record.is_prompt for record in records])
    return LeftOut(labels, logits, folds, accepted_labels(records, labels), measured & (folds >= 0))


@dataclass(frozen=True, slots=True)
class TrainedClassifier:
    data: bytes  # the content of the classifier's file
    temperature: float
    left_out_top1: float  # accuracy on prompts whose source was left out of training


def collect_labels(records: Sequence[LabelledPrompt]) -> tuple[str, ...]:
    """Return the labels in order of first occurrence, `reject` last."""
    found = tuple(dict.fromkeys(record.label for record in records if record.label != REJECT))
    return (*found, REJECT) if any(record.label == REJECT for record in records) else found


def train(records: Sequence[LabelledPrompt], recipe: Recipe = DEFAULT_RECIPE) -> TrainedClassifier:
    """Train and calibrate, deterministically. Raises TooFewLabels, TooFewSources, or TrainingUnavailable."""
    labels = collect_labels(records)
    unseen = leave_out(records, labels, recipe)
    calibration = unseen.fit(unseen.is_measured)
    fitted = fit(records, labels, recipe)
    if not len(fitted.buckets):
        raise TooFewSources(f"training needs a word that occurs in at least {recipe.min_prompts} prompts")
    model = calibrate_model(fitted, calibration)
    found = unseen.probabilities()[unseen.is_measured].argmax(axis=1)
    top1 = float(unseen.accepted[unseen.is_measured][np.arange(len(found)), found].mean())
    return TrainedClassifier(encode_model(model), calibration.temperature, top1)
