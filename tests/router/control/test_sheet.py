"""Laws of a breaker's sheet: what was ordered lasts, what moved last stands, and equals change nothing."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from admission.breakers import BreakerRecord, hold_breaker
from router.control.breakers import BreakerDocument, merge_breaker_documents

times = st.none() | st.integers(0, 5).map(float)
standings = st.builds(
    BreakerRecord,
    state=st.sampled_from(["closed", "shadow_only", "recovering"]),
    since=st.integers(0, 5).map(float),
    transition_at=times,
    below_since=times,
    above_since=times,
)
holds = st.sampled_from(
    [
        BreakerRecord(),
        hold_breaker(BreakerRecord(), "open", "ann", "bad", 1.0),
        hold_breaker(BreakerRecord(), "closed", "bo", "", 2.0),
    ]
)
sheets = st.builds(BreakerDocument, st.dictionaries(st.sampled_from("xyz"), standings), holds)


def moved_at(standing: BreakerRecord | None) -> float:
    return 0.0 if standing is None or standing.transition_at is None else standing.transition_at


@given(sheets, sheets)
def test_of_two_sheets_each_lane_is_as_it_moved_last_and_the_stored_hold_stands(
    stored: BreakerDocument, own: BreakerDocument
) -> None:
    newer = {name for name, each in own.lanes.items() if moved_at(each) > moved_at(stored.lanes.get(name))}
    merged = merge_breaker_documents(stored.to_body(), own.to_body())
    if not newer:
        assert merged is None, "at a tie the stored one stands: there is nothing to write"
        return
    assert merged is not None
    sheet = BreakerDocument.from_body(merged)
    assert sheet.held == stored.held
    assert set(sheet.lanes) == set(stored.lanes) | newer
    assert all(sheet.lanes[name] == (own if name in newer else stored).lanes[name] for name in sheet.lanes)
    assert merge_breaker_documents(merged, own.to_body()) is None, "once is enough"


@given(sheets, st.sampled_from("wxyz"), standings)
def test_a_hold_is_over_every_lane_and_in_none(sheet: BreakerDocument, lane: str, standing: BreakerRecord) -> None:
    over = sheet.record(lane, 3.0)
    assert (over.hold, over.hold_by, over.hold_why) == (sheet.held.hold, sheet.held.hold_by, sheet.held.hold_why)
    written = sheet.with_lane(lane, sheet.with_hold(standing), keep=sheet.lanes)
    assert written.lanes[lane] == standing and written.held == sheet.held
    assert {name: each for name, each in written.lanes.items() if name != lane} == {
        name: each for name, each in sheet.lanes.items() if name != lane
    }
    assert written.release().record(lane, 0.0) == standing
    assert replace(written, held=BreakerRecord()) == written.release()
    assert set(sheet.with_lane(lane, standing, keep=()).lanes) == {lane}
