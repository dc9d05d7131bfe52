"""The fields of a serialized message are counted before it is parsed."""

from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.rpc.handlers import parse_request
from octet.rpc.messages import MAX_FIELDS, has_at_most_fields
from octet.rpc.refusal import Refusal
from octet.v1 import inference_pb2 as wire

LIMIT = 2 << 20
TURNS = st.lists(st.builds(wire.Message, role=st.text(max_size=3), content=st.text(max_size=3)), max_size=5)
BIASES = st.lists(st.builds(wire.LogitBias, token=st.integers(0, 9), bias=st.floats(-1, 1)), max_size=5)
SAMPLINGS = st.builds(wire.Sampling, temperature=st.none() | st.floats(0, 2), logit_bias=BIASES)
MESSAGES = st.builds(
    wire.InferRequest,
    prompt=st.text(max_size=5),
    messages=TURNS,
    stop=st.lists(st.text(max_size=3), max_size=5),
    sampling=SAMPLINGS,
    seed=st.none() | st.integers(-5, 5),
)


def fields_of(message: Any) -> int:
    """Return the number of fields that are set in a parsed message and in the messages within it."""
    count = 0
    for field, value in message.ListFields():
        for each in value if field.is_repeated else [value]:
            count += 1 + (fields_of(each) if field.message_type is not None else 0)
    return count


@given(MESSAGES)
def test_every_field_counts_once(message: wire.InferRequest) -> None:
    raw, count = message.SerializeToString(), fields_of(message)
    assert has_at_most_fields(count, raw, wire.InferRequest.DESCRIPTOR)
    assert count == 0 or not has_at_most_fields(count - 1, raw, wire.InferRequest.DESCRIPTOR)


@given(st.binary(max_size=200))
def test_malformed_bytes_are_counted_too(raw: bytes) -> None:
    assert has_at_most_fields(len(raw), raw, wire.InferRequest.DESCRIPTOR)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x2a\x00" * 1_000_000,
        b"\x2a\x00" * 1_000_000 + b"\x12\x01\xff",
        b"\x5a\xc0\x84\x3d" + b"\x4a\x00" * 500_000,
        b"\x80" * 2_000_000,
        b"\x82" * 2_000_000,
        b"\x2a" * 2_000_000,
    ],
    ids=[
        "empty messages",
        "empty messages and invalid UTF-8",
        "empty biases",
        "an endless number",
        "an endless tag",
        "lengths",
    ],
)
def test_large_message_of_empty_fields_is_refused_quickly(raw: bytes) -> None:
    before = process_time()
    with pytest.raises(Refusal):
        parse_request(raw, wire.InferRequest, LIMIT)
    assert process_time() - before < 0.2


def test_the_largest_valid_request_is_within_the_field_limit() -> None:
    full = wire.InferRequest(
        messages=[wire.Message(role="user", content="x" * 100)] * 1024,
        sampling=wire.Sampling(logit_bias=[wire.LogitBias(token=token, bias=1.0) for token in range(1024)]),
    )
    assert fields_of(full) <= MAX_FIELDS
    assert parse_request(full.SerializeToString(), wire.InferRequest, LIMIT) == full
