"""A distribution is one, whatever is left out of it."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.classify.base import REJECT, Distribution

NAMES = ("algo", "build", "debug", REJECT)


@st.composite
def distributions(draw: st.DrawFn) -> Distribution:
    weights = draw(st.lists(st.integers(0, 100), min_size=len(NAMES), max_size=len(NAMES)).filter(any))
    return Distribution.of((name, weight / sum(weights)) for name, weight in zip(NAMES, weights, strict=True))


@given(distributions())
def test_the_first_is_the_likeliest(distribution: Distribution) -> None:
    assert distribution.confidence == max(probability for _, probability in distribution.scores)
    assert distribution.probability(distribution.top) == distribution.confidence
    assert distribution.probability("stranger") == 0


@given(distributions(), st.sets(st.sampled_from(NAMES)))
def test_leaving_out_keeps_the_odds_of_the_others(distribution: Distribution, excluded: set[str]) -> None:
    rest = distribution.without(excluded)
    left = {name: distribution.probability(name) for name in NAMES if name not in excluded}
    if rest is None:
        assert sum(left.values()) == 0
        return
    total = sum(left.values())
    assert dict(rest.scores) == pytest.approx({name: probability / total for name, probability in left.items()})


@pytest.mark.parametrize(
    "scores",
    [
        (),
        (("a", nan), ("b", 0.5)),
        (("a", inf),),
        (("a", 1.5), ("b", -0.5)),
        (("a", 0.5), ("b", 0.4)),
        (("a", 0.4), ("b", 0.6)),
        (("a", 0.5), ("a", 0.5)),
    ],
)
def test_what_is_no_distribution_is_refused(scores: tuple[tuple[str, float], ...]) -> None:
    with pytest.raises(ValueError, match=r"probabilit|label"):
        Distribution(scores)
