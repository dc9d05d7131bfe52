"""Only valid distributions can be created."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.config.ensemble import REJECT
from router.routing.classifier.base import Distribution

NAMES = ("algo", "build", "debug", REJECT)


@st.composite
def distributions(draw: st.DrawFn) -> Distribution:
    weights = draw(st.lists(st.integers(0, 100), min_size=len(NAMES), max_size=len(NAMES)).filter(any))
    return Distribution.of((name, weight / sum(weights)) for name, weight in zip(NAMES, weights, strict=True))


@given(distributions())
def test_labels_are_sorted_by_probability(distribution: Distribution) -> None:
    assert distribution.confidence == max(probability for _, probability in distribution.scores)
    assert dict(distribution.scores)[distribution.top] == distribution.confidence


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
def test_an_invalid_distribution_is_refused(scores: tuple[tuple[str, float], ...]) -> None:
    with pytest.raises(ValueError, match=r"probabilit|label"):
        Distribution(scores)
