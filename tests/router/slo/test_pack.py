"""Slices come back as they were written; what somebody else wrote there is a slice or a typed error."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.telemetry.sketch import LEAST
from octet.v1 import slo_pb2 as wire
from router.slo.pack import VERSION, BadSlice, pack, unpack
from router.slo.slice import Slice, Tally

SECONDS = st.lists(st.floats(LEAST, 1000.0), max_size=20)
COUNTS = st.tuples(st.integers(0, 1000), st.integers(0, 1000)).map(lambda pair: (pair[0] + pair[1], pair[1]))
TALLIES = st.builds(
    lambda counts, keys: Tally(counts[0], counts[1], keys),
    COUNTS,
    st.dictionaries(st.tuples(st.sampled_from(["ttft_p95", "itl_p99"]), st.floats(0.001, 100)), COUNTS, max_size=4),
)


@st.composite
def slices(draw: st.DrawFn) -> Slice:
    found = Slice(tally=draw(TALLIES))
    for sketch in (found.ttft, found.itl, found.admission):
        for each in draw(SECONDS):
            sketch.add(each)
    return found


@given(slices())
def test_a_slice_comes_back_as_it_was(content: Slice) -> None:
    assert unpack("writer", pack("writer", content)) == content
    assert unpack("writer", pack("writer", content.tally)).tally == content.tally


@given(slices(), slices())
def test_two_slices_are_one(one: Slice, other: Slice) -> None:
    both, turned = Slice(), Slice()
    for each in (one, other):
        both.merge(each)
    for each in (other, one):
        turned.merge(each)
    assert both == turned
    assert both.ttft.count == one.ttft.count + other.ttft.count
    assert both.tally.answered == one.tally.answered + other.tally.answered


@given(st.binary(max_size=80))
def test_bytes_of_anybody_are_a_slice_or_a_typed_error(raw: bytes) -> None:
    for tried in (raw, wire.SloSlice(version=VERSION, specialist="writer", ttft=raw).SerializeToString()):
        try:
            found = unpack("writer", tried)
        except BadSlice:
            continue
        assert unpack("writer", pack("writer", found)) == found


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"version": VERSION + 1}, "version"),
        ({"specialist": "critic"}, "another specialist"),
        ({"answered": 1, "preempted_once": 2}, "preempted_once"),
        ({"answered": -1}, "preempted_once"),
        ({"itl": b"\x07"}, "begin with"),
        ({"tallies": [wire.SloTally(objective="", target=1, samples=1)]}, "name"),
        ({"tallies": [wire.SloTally(objective="x", target=inf, samples=1)]}, "target"),
        ({"tallies": [wire.SloTally(objective="x", target=1, samples=1, breached=2)]}, "breached"),
        ({"tallies": [wire.SloTally(objective="x", target=1)] * 65}, "at most 64"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, object], says: str) -> None:
    message = wire.SloSlice(**{"version": VERSION, "specialist": "writer", **fields})  # type: ignore[arg-type]
    with pytest.raises(BadSlice, match=says):
        unpack("writer", message.SerializeToString())
