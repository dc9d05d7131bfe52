"""A history covers an hour, with a point every few seconds."""

import json

from hypothesis import given
from hypothesis import strategies as st

from octet.rpc.messages import message_to_json
from octet.v1 import overview_pb2 as wire
from router.observe.overview.overview import MOST_POINTS, HistoryRecorder
from tests.router.overview.harness import START_MS


def overview(at_ms: int, *names: str, requests: float = 1.0) -> wire.Overview:
    found = wire.Overview(at_unix_ms=at_ms)
    for name in names:
        found.specialists.add(name=name).rates.requests = requests
    return found


@given(st.lists(st.lists(st.sampled_from(("a", "b", "c")), unique=True), max_size=12), st.integers(0, 12))
def test_history_has_current_specialists_in_both_formats(steps: list[list[str]], last: int) -> None:
    history = HistoryRecorder(most=5)
    for number, names in enumerate(steps):
        history.add(overview(START_MS + number, *names))
    reported = history.message()
    assert [each.name for each in reported.specialists] == (steps[-1] if steps else [])
    for each in reported.specialists:
        there = next((age for age, names in enumerate(reversed(steps)) if each.name not in names), len(steps))
        assert len(each.points) == min(there, 5), "the history of a specialist that returns must start again"
    for since in (0, START_MS + last):
        assert json.loads(history.json(since)) == message_to_json(history.message(since))
        assert all(point.at_unix_ms >= since for each in history.message(since).specialists for point in each.points)


def test_a_point_has_the_figures_of_the_overview() -> None:
    found = overview(START_MS, "debug", requests=1 / 3)
    view = found.specialists[0]
    view.slo.ttft.p95, view.slo.itl.p95, view.slo.admission_to_first_token.p95 = 0.5, 0.05, 0.25
    view.slo.objectives.add(name="ttft_p95").burns.add(rate=3.0)
    view.slo.objectives.add(name="itl_p95").burns.add(rate=7.0)
    view.slo.objectives.add(name="itl_p99").burns.add()
    view.breaker.pass_rate, view.cache_reuse = 0.9, 0.4
    for used in (10, 30):
        load = view.replicas.add().load
        load.waiting, load.running, load.blocks.used, load.blocks.total = 2, 3, used, 100
    view.replicas.add()
    history = HistoryRecorder()
    history.add(found)
    (point,) = history.message().specialists[0].points
    assert (point.ttft_p95, point.itl_p95, point.admission_to_first_token_p95) == (0.5, 0.05, 0.25)
    assert (point.pass_rate, point.cache_reuse, point.burn, point.blocks_used) == (0.9, 0.4, 7.0, 0.2)
    assert (point.waiting, point.running, point.requests) == (4, 6, 0.333333)


def test_unknown_figures_are_unset() -> None:
    history = HistoryRecorder()
    history.add(overview(START_MS, "debug"))
    (point,) = json.loads(history.json())["specialists"][0]["points"]
    unset = {name for name, value in point.items() if value is None}
    assert unset == {
        *("ttft_p95", "itl_p95", "admission_to_first_token_p95", "pass_rate", "blocks_used", "cache_reuse", "burn")
    }


def test_a_history_covers_one_hour() -> None:
    history = HistoryRecorder()
    for number in range(MOST_POINTS + 5):
        history.add(overview(START_MS + number, "debug"))
    points = history.message().specialists[0].points
    assert len(points) == MOST_POINTS and points[0].at_unix_ms == START_MS + 5
