"""A slice holds a router's measurements of a short time. It is unchanged after encoding and decoding. Untrusted bytes
decode to a slice or raise a typed error."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.telemetry.distributions import LEAST_SECONDS
from octet.v1 import slo_pb2 as wire
from router.quality.slo import SloSlice
from router.quality.slo_sharing import SLICE_VERSION, BadSlice, pack_slice, unpack_slice

SECONDS = st.lists(st.floats(LEAST_SECONDS, 1000.0), max_size=20)
COUNTS = st.tuples(st.integers(0, 1000), st.integers(0, 1000)).map(lambda pair: (pair[0] + pair[1], pair[1]))
OBJECTIVES = st.tuples(st.sampled_from(["ttft_p95", "itl_p99"]), st.floats(0.001, 100))


@st.composite
def slices(draw: st.DrawFn) -> SloSlice:
    answered, preempted = draw(COUNTS)
    counts = draw(st.dictionaries(OBJECTIVES, COUNTS, max_size=4))
    found = SloSlice(answered=answered, preempted=preempted, counts=counts)
    for sketch in (found.ttft, found.itl, found.admission):
        for each in draw(SECONDS):
            sketch.add(each)
    return found


@given(slices())
def test_a_slice_round_trips(content: SloSlice) -> None:
    assert unpack_slice("writer", pack_slice("writer", content)) == content


@given(slices(), slices())
def test_two_slices_are_merged(one: SloSlice, other: SloSlice) -> None:
    both, turned = SloSlice(), SloSlice()
    for each in (one, other):
        both.merge(each)
    for each in (other, one):
        turned.merge(each)
    assert both == turned
    assert both.ttft.count == one.ttft.count + other.ttft.count
    assert both.answered == one.answered + other.answered


@given(st.binary(max_size=80))
def test_untrusted_bytes_are_a_slice_or_a_typed_error(raw: bytes) -> None:
    for tried in (raw, wire.SloSlice(version=SLICE_VERSION, specialist="writer", ttft=raw).SerializeToString()):
        try:
            found = unpack_slice("writer", tried)
        except BadSlice:
            continue
        assert unpack_slice("writer", pack_slice("writer", found)) == found


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"version": SLICE_VERSION + 1}, "version"),
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
def test_an_impossible_slice_is_refused(fields: dict[str, object], says: str) -> None:
    message = wire.SloSlice(**{"version": SLICE_VERSION, "specialist": "writer", **fields})  # type: ignore[arg-type]
    with pytest.raises(BadSlice, match=says):
        unpack_slice("writer", message.SerializeToString())
