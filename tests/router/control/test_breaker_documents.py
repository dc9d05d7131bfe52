"""Merged breaker documents keep the stored hold and the latest transition of every lane."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from admission.breakers import BreakerRecord, hold_breaker
from router.control.breakers import BreakerDocument, merge_breaker_documents

times = st.none() | st.integers(0, 5).map(float)
records = st.builds(
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
documents = st.builds(BreakerDocument, st.dictionaries(st.sampled_from("xyz"), records), holds)


def moved_at(status: BreakerRecord | None) -> float:
    return 0.0 if status is None or status.transition_at is None else status.transition_at


@given(documents, documents)
def test_a_merge_takes_the_latest_transition_of_each_lane_and_the_stored_hold(
    stored: BreakerDocument, own: BreakerDocument
) -> None:
    newer = {name for name, each in own.lanes.items() if moved_at(each) > moved_at(stored.lanes.get(name))}
    merged = merge_breaker_documents(stored.to_body(), own.to_body())
    if not newer:
        assert merged is None, "if both times are equal, the stored record stays and nothing is written"
        return
    assert merged is not None
    document = BreakerDocument.from_body(merged)
    assert document.held == stored.held
    assert set(document.lanes) == set(stored.lanes) | newer
    assert all(document.lanes[name] == (own if name in newer else stored).lanes[name] for name in document.lanes)
    assert merge_breaker_documents(merged, own.to_body()) is None, "a second merge must change nothing"


@given(documents, st.sampled_from("wxyz"), records)
def test_a_hold_applies_to_every_lane_and_is_stored_in_none(
    document: BreakerDocument, lane: str, status: BreakerRecord
) -> None:
    over = document.record(lane, 3.0)
    assert (over.hold, over.hold_by, over.hold_why) == (
        document.held.hold,
        document.held.hold_by,
        document.held.hold_why,
    )
    written = document.with_lane(lane, document.with_hold(status), keep=document.lanes)
    assert written.lanes[lane] == status and written.held == document.held
    assert {name: each for name, each in written.lanes.items() if name != lane} == {
        name: each for name, each in document.lanes.items() if name != lane
    }
    assert written.release().record(lane, 0.0) == status
    assert replace(written, held=BreakerRecord()) == written.release()
    assert set(document.with_lane(lane, status, keep=()).lanes) == {lane}
