"""Comparisons are counted when they are made, and dropped after an hour."""

from collections.abc import AsyncGenerator, Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2
from octet.v1 import operator_pb2 as wire
from router.observe.overview import shadow_agreement as module
from router.observe.overview.shadow_agreement import MOST_KEYS, MOST_ROWS, WINDOW_MS, ShadowAgreement, ShadowTally
from tests.router.overview.harness import START_MS

OUTCOMES = ("passed", "failed", "skipped", "unavailable")


def comparison(at_ms: int, primary: str = "debug", shadow: str = "stl", **fields: object) -> wire.Comparison:
    return wire.Comparison(at_unix_ms=at_ms, primary=primary, shadow=shadow, why="low_confidence", **fields)  # type: ignore[arg-type]


@st.composite
def comparisons(draw: st.DrawFn) -> wire.Comparison:
    return comparison(
        START_MS + draw(st.integers(0, 2 * WINDOW_MS)),
        draw(st.sampled_from(("debug", "algo"))),
        draw(st.sampled_from(("stl", "debug+lora"))),
        primary_outcome=draw(st.sampled_from(OUTCOMES)),
        shadow_outcome=draw(st.sampled_from(OUTCOMES)),
        similarity=draw(st.integers(0, 4)) / 4,
        agreed=draw(st.booleans()),
    )


class FakeComparisons:
    def __init__(self, rows: Iterable[bytes], fails: bool = False) -> None:
        self.rows = list(rows)
        self.fails = fails
        self.num_read = 0

    async def comparisons(self, since_ms: int) -> AsyncGenerator[bytes, None]:
        if self.fails:
            raise Refusal(error_pb2.ERROR_REASON_STORE_UNAVAILABLE, "away")
        for row in self.rows:
            self.num_read += 1
            yield row


@given(st.lists(comparisons(), max_size=30))
def test_the_rows_are_those_of_a_report_over_the_last_hour(made: list[wire.Comparison]) -> None:
    wall = [START_MS]
    counted, steps = ShadowAgreement(lambda: wall[0]), sorted(made, key=lambda each: each.at_unix_ms)
    for one in steps:
        wall[0] = one.at_unix_ms
        counted.add(one)
    report = ShadowTally()
    for one in steps:
        if one.at_unix_ms // 60_000 * 60_000 > wall[0] - WINDOW_MS:
            report.add(one)
    assert counted.rows() == report.rows()
    wall[0] += WINDOW_MS + 60_000
    assert counted.rows() == [] and not counted._sum.counts and not counted._minutes


async def test_stored_comparisons_are_read_once() -> None:
    counted = ShadowAgreement(lambda: START_MS)
    live = comparison(START_MS, agreed=True)
    counted.add(live)
    kept = [comparison(START_MS - 1000 * number) for number in range(5)]
    rows: Any = FakeComparisons([*(each.SerializeToString() for each in kept), b"\xff\xff"])
    await counted.read(rows)
    (row,) = counted.rows()
    assert (row.compared, row.agreed) == (5, 1), "the live comparison must be counted once"


async def test_reading_is_bounded_and_tolerates_an_unavailable_store() -> None:
    counted = ShadowAgreement(lambda: START_MS)
    rows: Any = FakeComparisons([], fails=True)
    await counted.read(rows)
    assert counted.rows() == []
    rows = FakeComparisons([comparison(START_MS - 1).SerializeToString()] * (module.MOST_READ + 10))
    await counted.read(rows)
    assert rows.num_read == module.MOST_READ == counted.rows()[0].compared


def test_names_are_bounded() -> None:
    counted = ShadowAgreement(lambda: START_MS)
    for number in range(MOST_KEYS + 100):
        counted.add(comparison(START_MS, intent=f"intent-{number}"))
    assert len(counted._sum.counts) == MOST_KEYS and len(counted.rows()) == MOST_ROWS
    counted.add(comparison(START_MS, intent="intent-7"))
    assert counted.rows()[0].intent == "intent-7" and counted.rows()[0].compared == 2
