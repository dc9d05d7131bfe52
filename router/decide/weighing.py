"""What a classifier's opinion means for this ensemble and this request. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from octet.config.ensemble import Ensemble
from router.classify.base import REJECT, Distribution
from router.decide.choice import Choice, fallback_of
from router.reception.ask import Ask

Shares = tuple[tuple[str, float], ...]
_NAMED = 3
"""Of a distribution, in a sentence."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """An opinion as it concerns one ensemble and one request."""

    whole: Shares
    """Of everybody in the ensemble, and reject."""
    left: Shares
    """The same without whom the caller excluded."""
    weight: float
    """What those who are left had of the whole."""
    said: str


def weigh(ask: Ask, ensemble: Ensemble, opinion: Distribution, digest: str) -> Choice:
    """Whether anybody should answer is judged before the caller's exclusions, who it is after them."""
    heard = _heard(opinion, ensemble, ask.exclude)
    thresholds = ensemble.classifier
    top, reject = _likeliest(heard.whole), dict(heard.whole)[REJECT]
    if top is None or reject >= thresholds.reject_threshold or reject >= dict(heard.whole)[top]:
        why = f"the classifier would have nobody answer: {heard.said}"
        return Choice("nobody", digest, why, distribution=heard.left, classifier_digest=digest)
    best = _likeliest(heard.left)
    if best is not None and min(dict(heard.left)[best], heard.weight) >= thresholds.min_confidence:
        return _classified(best, _second(best, heard.left, ask, ensemble), f"classifier: {heard.said}", heard, digest)
    stand_in = fallback_of(top, ask, ensemble) if top in ask.exclude else ""
    if stand_in:
        why = f"{stand_in} stands in for {top}, which the caller excluded; classifier: {heard.said}"
        return _classified(stand_in, fallback_of(stand_in, ask, ensemble), why, heard, digest)
    why = f"the classifier is not sure enough of anybody ({heard.said}; {thresholds.min_confidence:g} is needed)"
    return by_default(why, ask, ensemble, heard.left, digest)


def _classified(primary: str, second: str, why: str, heard: _Heard, digest: str) -> Choice:
    return Choice("classifier", digest, why, primary, second, heard.left, dict(heard.left).get(primary, 0.0), digest)


def _heard(opinion: Distribution, ensemble: Ensemble, exclude: tuple[str, ...]) -> _Heard:
    whole = shares_of(opinion, ensemble)
    left = without(whole, exclude)
    weight = sum(share for name, share in whole if name != REJECT and name not in exclude)
    gone = ", ".join(name for name, _ in whole if name in exclude)
    said = f"{_sentence(whole)}; without {gone}: {_sentence(left)}" if gone else _sentence(whole)
    return _Heard(whole, left, weight, said)


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


def shares_of(opinion: Distribution, ensemble: Ensemble) -> Shares:
    """Most likely first, reject always among them, 1 in all. What belongs to specialists that this ensemble does not
    have belongs to nobody here."""
    there = set(ensemble.names)
    shares = {REJECT: 0.0}
    for name, probability in opinion.scores:
        if name in there:
            shares[name] = probability
        else:
            shares[REJECT] += probability
    return _ordered(shares)


def without(whole: Shares, exclude: tuple[str, ...]) -> Shares:
    """Reject keeps its share: that nobody should answer is no likelier for a caller who will not have somebody. What
    the excluded had goes to the other specialists, in proportion."""
    rest = {name: share for name, share in whole if name != REJECT and name not in exclude}
    if len(rest) + 1 == len(whole):
        return whole
    if not rest:
        return ((REJECT, 1.0),)
    reject, weight = dict(whole)[REJECT], sum(rest.values())
    even = 1.0 / len(rest)
    shared = {name: (1.0 - reject) * (share / weight if weight > 0 else even) for name, share in rest.items()}
    return _ordered({REJECT: reject, **shared})


def _ordered(shares: Mapping[str, float]) -> Shares:
    return tuple(sorted(shares.items(), key=lambda share: (-share[1], share[0])))


def _likeliest(shares: Shares) -> str | None:
    return next((name for name, _ in shares if name != REJECT), None)


def _second(primary: str, shares: Shares, ask: Ask, ensemble: Ensemble) -> str:
    """The runner-up where it is likely enough, else whoever is configured to stand in."""
    for name, probability in shares:
        if name not in (primary, REJECT) and probability >= ensemble.classifier.second_threshold:
            return name
    return fallback_of(primary, ask, ensemble)


def _sentence(shares: Shares) -> str:
    return ", ".join(f"{name} {probability:.2f}" for name, probability in shares[:_NAMED])
