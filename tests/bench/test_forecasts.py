"""The figures of `octet bench forecast`."""

import pytest

from bench.forecasts import ALL_LOADS, ANY, FIRST, KNOWN, ForecastOutcome, error_figures, published_figures, targets
from octet.v1 import specialist_pb2 as wire


def test_errors_are_shares_of_the_real_times_of_enough_answers() -> None:
    outcomes = [ForecastOutcome(True, 0.1, 1.0, first=0.2, end=float(end)) for end in range(1, 11)]
    outcomes += [ForecastOutcome(False, None, 3.0, first=0.5, end=2.0)] * 10
    figures = {metric: value for metric, _, value in error_figures(outcomes)}
    assert figures[f"error, {FIRST}, p50"] == figures[f"error, {FIRST}, p90"] == pytest.approx(50)
    assert figures[f"error, {KNOWN}, p90"] == pytest.approx(90, abs=2)
    assert figures[f"error, {ANY}, p50"] == pytest.approx(50)
    assert not [metric for metric, _, _ in error_figures(outcomes[:9])], "nine answers are too few"


def test_published_errors_are_shown_in_percent_and_only_if_known() -> None:
    error = wire.EstimateError(step_p50=0.1, step_p90=0.2, first_p90=0.25, total_p50=0.5)
    shown = {metric: value for metric, _, value in published_figures(error)}
    assert shown == {"error, first token, published, p90": 25, "error, request, published, p50": 50}


def test_published_errors_belong_to_no_load() -> None:
    cases = {case for case, metric in targets((0.5, 0.7)) if "published" in metric}
    assert cases == {ALL_LOADS}
