"""What a classifier's opinion means for this ensemble and this request. Pure."""

from collections.abc import Mapping

from octet.config.ensemble import Ensemble
from router.classify.base import REJECT, Distribution
from router.decide.choice import Choice, fallback_of
from router.reception.ask import Ask

Shares = tuple[tuple[str, float], ...]
_NAMED = 3
"""Of a distribution, in a sentence."""


def weigh(ask: Ask, ensemble: Ensemble, opinion: Distribution, digest: str) -> Choice:
    shares = shares_of(opinion, ensemble, ask.exclude)
    probability = dict(shares)
    thresholds = ensemble.classifier
    top = next((name for name, _ in shares if name != REJECT), None)
    reject = probability[REJECT]
    said = _sentence(shares)
    if top is None or reject >= thresholds.reject_threshold or reject >= probability[top]:
        why = f"the classifier would have nobody answer: {said}"
        return Choice("nobody", digest, why, distribution=shares, classifier_digest=digest)
    if probability[top] >= thresholds.min_confidence:
        return Choice(
            "classifier",
            digest,
            f"classifier: {said}",
            top,
            _second(top, shares, ask, ensemble),
            shares,
            probability[top],
            digest,
        )
    why = f"the classifier is not sure enough of anybody ({said}; {thresholds.min_confidence:g} is needed)"
    return by_default(why, ask, ensemble, shares, digest)


def by_default(why: str, ask: Ask, ensemble: Ensemble, shares: Shares = (), digest: str = "") -> Choice:
    """The ensemble's default specialist, where there is one and the caller will have it; else nobody."""
    default = ensemble.default_specialist
    if default is None or default in ask.exclude:
        return Choice("nobody", digest, why, distribution=shares, classifier_digest=digest)
    return Choice(
        "default",
        "default_specialist",
        f"{default} takes what nobody else should: {why}",
        default,
        _second(default, shares, ask, ensemble),
        shares,
        dict(shares).get(default, 0.0) if shares else None,
        digest,
    )


def shares_of(opinion: Distribution, ensemble: Ensemble, exclude: tuple[str, ...]) -> Shares:
    """Most likely first, reject always among them, 1 in all. What the caller excluded is shared out among the others;
    what belongs to specialists that this ensemble does not have belongs to nobody here."""
    there = set(ensemble.names)
    left = {REJECT: 0.0}
    for name, probability in opinion.scores:
        if name in there and name not in exclude:
            left[name] = probability
        elif name not in exclude:
            left[REJECT] += probability
    return _ordered(left, sum(left.values()) if exclude else 1.0)


def _ordered(left: Mapping[str, float], total: float) -> Shares:
    if total <= 0:
        return ((REJECT, 1.0),)
    shares = ((name, probability / total) for name, probability in left.items())
    return tuple(sorted(shares, key=lambda share: (-share[1], share[0])))


def _second(primary: str, shares: Shares, ask: Ask, ensemble: Ensemble) -> str:
    """The runner-up where it is likely enough, else whoever is configured to stand in."""
    for name, probability in shares:
        if name not in (primary, REJECT) and probability >= ensemble.classifier.second_threshold:
            return name
    return fallback_of(primary, ask, ensemble)


def _sentence(shares: Shares) -> str:
    return ", ".join(f"{name} {probability:.2f}" for name, probability in shares[:_NAMED])
