"""Two lanes have the same digest exactly if all their parts are equal."""

from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.identity import Lane, digest_parts

digests = st.sampled_from(["0" * 64, "1" * 64, "f" * 64])
lanes = st.builds(
    Lane,
    specialist=st.sampled_from(["reader", "writer"]),
    revision=digests,
    adapters=st.lists(digests, max_size=2).map(tuple),
)
parts = st.lists(st.binary(max_size=2), max_size=4)

NOT_DIGESTS = ["", "latest", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "a" * 64 + "\n", "\uff11" * 64, "0x" + "a" * 62]


@pytest.mark.parametrize("name", NOT_DIGESTS, ids=repr)
def test_a_lane_is_named_by_digests_only(name: str) -> None:
    with pytest.raises(ValueError, match="revision must be a sha256 digest"):
        Lane("writer", name)
    with pytest.raises(ValueError, match="adapter must be a sha256 digest"):
        Lane("writer", "0" * 64, ("1" * 64, name))


def test_a_lane_has_a_specialist() -> None:
    with pytest.raises(ValueError, match="specialist must not be empty"):
        Lane("", "0" * 64)


def test_a_lane_never_changes() -> None:
    with pytest.raises(FrozenInstanceError):
        Lane("writer", "0" * 64).revision = "1" * 64  # type: ignore[misc]


@given(lanes, lanes)
def test_digest_separates_exactly_the_lanes_that_differ(one: Lane, other: Lane) -> None:
    assert (one.digest() == other.digest()) == (one == other)


@given(lanes, lanes)
def test_differences_are_exactly_the_parts_that_differ(one: Lane, other: Lane) -> None:
    named = {line.partition(":")[0] for line in one.differences(other)}
    patched = replace(one, **{name: getattr(other, name) for name in named})
    assert patched == other
    assert all(getattr(one, name) != getattr(other, name) for name in named)


def test_a_difference_shows_both_sides() -> None:
    lines = Lane("writer", "0" * 64).differences(Lane("reader", "0" * 64, ("1" * 64,)))
    assert lines == ["specialist: 'writer' != 'reader'", f"adapters: () != ('{'1' * 64}',)"]


@given(parts, parts)
def test_digest_separates_parts_with_the_same_concatenation(one: list[bytes], other: list[bytes]) -> None:
    assert (digest_parts(one) == digest_parts(other)) == (one == other)


@given(st.binary(min_size=1, max_size=6), st.data())
def test_digest_depends_on_where_bytes_are_split(whole: bytes, data: st.DataObject) -> None:
    here, there = data.draw(st.lists(st.integers(0, len(whole)), min_size=2, max_size=2, unique=True))
    assert digest_parts([whole[:here], whole[here:]]) != digest_parts([whole[:there], whole[there:]])
