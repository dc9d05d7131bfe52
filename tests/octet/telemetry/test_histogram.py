"""A histogram equals a naive count, and its Prometheus text can be parsed."""

from math import inf, isfinite, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.telemetry import distributions
from octet.telemetry.distributions import Histogram
from octet.telemetry.exposition import histogram_family

BOUNDS = (0.001, 0.01, 0.1, 1.0)
values = st.lists(st.one_of(st.floats(), st.sampled_from((*BOUNDS, 0.0, -0.0, -1.0, nan, inf))))


@given(values)
def test_every_value_is_counted_in_every_bucket_that_holds_it(given_values: list[float]) -> None:
    found = Histogram(BOUNDS)
    for value in given_values:
        found.add(value)
    counted = [value for value in given_values if isfinite(value) and value >= 0]
    (family,) = [histogram_family("h", "about", ("specialist",), [(("writer",), found)])]
    read = {sample.labels.get("le", sample.name): sample.value for sample in family.samples}
    for bound in BOUNDS:
        assert read[repr(bound)] == sum(value <= bound for value in counted)
    assert read["+Inf"] == read["h_count"] == found.num_values == len(counted)
    assert read["h_sum"] == pytest.approx(sum(counted), rel=1e-9) or not isfinite(sum(counted))


@pytest.mark.parametrize("wrong", [(), (1.0, 1.0), (2.0, 1.0)])
def test_bounds_ascend(wrong: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        Histogram(wrong)


def test_bounds_cover_the_measured_range() -> None:
    for name, found in vars(distributions).items():
        if name.endswith("_BOUNDS"):
            Histogram(found)
    assert distributions.TTFT_SECONDS_BOUNDS[0] == 0.001 and distributions.TTFT_SECONDS_BOUNDS[-1] == 30
    assert distributions.ITL_SECONDS_BOUNDS[0] == 0.0005 and distributions.ITL_SECONDS_BOUNDS[-1] == 2
