"""Sampling by its definition, in plain Python: slow, and without code shared with the product."""

from collections import Counter, defaultdict
from math import exp, inf, log

import numpy as np

from specialist.ops.reference.sampling import SampleRow


def naive_probabilities(logits: list[float], row: SampleRow) -> dict[int, float]:
    """Return the probability of each candidate, for a temperature above 0."""
    want = row.sampling
    scores = {token: score / want.temperature for token, score in enumerate(naive_adjusted(logits, row))}
    scores = {token: score for token, score in scores.items() if score > -inf}
    if want.top_k:
        scores = _top_k(scores, want.top_k)
    if want.typical_p < 1:
        scores = _typical(scores, want.typical_p)
    if want.top_p < 1:
        scores = _top_p(scores, want.top_p)
    if want.min_p > 0:
        p = softmax(scores)
        scores = {token: scores[token] for token in scores if p[token] >= want.min_p * max(p.values())}
    return softmax(scores)


def naive_adjusted(logits: list[float], row: SampleRow) -> list[float]:
    """Return the adjusted logits. They are computed in float32, as in the tested sampler, so that
    the same tokens tie in both."""
    want = row.sampling
    scores = [np.float32(score) for score in logits]
    bias: dict[int, float] = defaultdict(float)
    for token, value in want.logit_bias:
        bias[token] += value
    for token, value in bias.items():
        scores[token] += np.float32(value)
    penalty = np.float32(want.repetition_penalty)
    for token in set(row.tokens):
        scores[token] = scores[token] * penalty if scores[token] < 0 else scores[token] / penalty
    presence, frequency = np.float32(want.presence_penalty), np.float32(want.frequency_penalty)
    for token, count in Counter(list(row.tokens)[row.num_prompt :]).items():
        scores[token] -= presence + np.float32(count) * frequency
    if len(row.tokens) - row.num_prompt < want.min_tokens:
        for token in row.stop_ids:
            scores[token] = np.float32(-inf)
    return [float(score) for score in scores]


def softmax(scores: dict[int, float]) -> dict[int, float]:
    peak = max(scores.values())
    weights = {token: exp(score - peak) for token, score in scores.items()}
    total = sum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


def _top_k(scores: dict[int, float], count: int) -> dict[int, float]:
    least = sorted(scores.values(), reverse=True)[:count][-1]
    return {token: score for token, score in scores.items() if score >= least}


def _top_p(scores: dict[int, float], mass: float) -> dict[int, float]:
    kept: dict[int, float] = {}
    p, reached = softmax(scores), 0.0
    for token in sorted(scores, key=lambda token: (-scores[token], token)):
        if kept and reached >= mass:
            break
        kept[token] = scores[token]
        reached += p[token]
    return kept


def _typical(scores: dict[int, float], mass: float) -> dict[int, float]:
    """Locally typical sampling: keep the tokens whose information is closest to the entropy."""
    p = {token: one for token, one in softmax(scores).items() if one > 0}
    entropy = -sum(one * log(one) for one in p.values())
    distance = {token: abs(-log(one) - entropy) for token, one in p.items()}
    reached, furthest = 0.0, 0.0
    for token in sorted(p, key=lambda token: distance[token]):
        furthest = distance[token]
        reached += p[token]
        if reached >= mass:
            break
    return {token: scores[token] for token in p if distance[token] <= furthest + 1e-12}
