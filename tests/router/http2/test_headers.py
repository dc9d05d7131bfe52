"""Headers in every HPACK encoding are decoded. A header block that cannot be decoded ends the connection."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.dispatch.http2 import frames as header_block
from router.dispatch.http2.frames import HeaderDecoder, HeadersInvalid, HeadersTooLong, decode_metadata
from router.dispatch.http2.hpack_tables import STATIC_TABLE, huffman_decode
from tests.router.http2.encoder import Encoder, HeaderForm, huffman

RFC_REQUESTS = [
    ("828684418cf1e3c2e5f23a6ba0ab90f4ff", [":authority www.example.com"]),
    ("828684be5886a8eb10649cbf", [":authority www.example.com", "cache-control no-cache"]),
    (
        "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        [":authority www.example.com", "custom-key custom-value"],
    ),
]
"""Examples from RFC 7541, appendix C.4."""
RFC_PLAIN_REQUESTS = [
    ("828684410f7777772e6578616d706c652e636f6d", [":authority www.example.com"]),
    ("828684be58086e6f2d6361636865", [":authority www.example.com", "cache-control no-cache"]),
    (
        "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
        [":authority www.example.com", "custom-key custom-value"],
    ),
]
"""Examples from RFC 7541, appendix C.3."""
names = st.one_of(
    st.sampled_from([name for name, _ in STATIC_TABLE]), st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True)
)
values = st.text(st.characters(max_codepoint=255), max_size=60)
forms = st.builds(HeaderForm, st.booleans(), st.booleans(), st.booleans(), st.booleans())
headers = st.tuples(names, values)


@pytest.mark.parametrize("blocks", [RFC_REQUESTS, RFC_PLAIN_REQUESTS])
def test_examples_of_the_rfc_are_decoded(blocks: list[tuple[str, list[str]]]) -> None:
    decoder = HeaderDecoder()
    for block, expected in blocks:
        said = [" ".join(header) for header in decoder.decode(bytes.fromhex(block))]
        assert [each for each in said if not each.startswith((":method", ":scheme", ":path"))] == expected


@given(
    st.lists(st.tuples(st.lists(st.tuples(headers, forms), max_size=8), st.none() | st.integers(0, 4096)), max_size=8)
)
def test_encoded_blocks_are_decoded_in_order(
    blocks: list[tuple[list[tuple[tuple[str, str], HeaderForm]], int | None]],
) -> None:
    encoder, decoder = Encoder(), HeaderDecoder()
    for fields, size in blocks:
        block = b"" if size is None else encoder.resize(size)
        block += b"".join(encoder.encode(header, form) for header, form in fields)
        for _ in range(2):  # The same bytes have the same meaning only while the table is unchanged.
            assert decoder.decode(block) == tuple(header for header, _ in fields)
            if any(form.remember for _, form in fields) or size is not None:
                break


@given(st.binary(max_size=80))
def test_huffman_round_trip(raw: bytes) -> None:
    assert huffman_decode(huffman(raw)) == raw


@given(st.binary(max_size=40))
def test_huffman_refuses_codes_that_no_encoder_writes(raw: bytes) -> None:
    try:
        said = huffman_decode(raw)
    except ValueError:
        return
    assert huffman(said) == raw


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_invalid_header_block_only_ends_the_connection(blocks: list[bytes]) -> None:
    decoder = HeaderDecoder(max_list_bytes=512)
    for block in blocks:
        with suppress(HeadersInvalid, HeadersTooLong):
            decoder.decode(block)


@pytest.mark.parametrize(
    "block",
    [
        "80",  # index 0
        "be",  # an index without an entry
        "ffffffffff0f",  # an integer without an end
        "3fe21f",  # a table of more than 4096 bytes
        "8220",  # a table size update after a header
        "400a6375",  # a truncated name
        "0081ff",  # eight bits of padding
        "0084ffffffff01",  # the end-of-string code inside a string
    ],
)
def test_blocks_that_no_encoder_writes_are_refused(block: str) -> None:
    with pytest.raises(HeadersInvalid):
        HeaderDecoder().decode(bytes.fromhex(block))


def test_oversized_header_list_is_dropped_and_the_table_stays_valid() -> None:
    encoder, decoder = Encoder(), HeaderDecoder(max_list_bytes=400)
    block = encoder.encode(("x-long", "a" * 200), HeaderForm())
    assert decoder.decode(block) == (("x-long", "a" * 200),)
    again = encoder.encode(("x-long", "a" * 200), HeaderForm())
    with pytest.raises(HeadersTooLong):
        decoder.decode(again * 5 + encoder.encode(("x-new", "b"), HeaderForm()))
    assert decoder.decode(encoder.encode(("x-new", "b"), HeaderForm())) == (("x-new", "b"),)
    with pytest.raises(HeadersInvalid):
        decoder.decode(again * 1000)


keys = st.from_regex(r"[a-z][a-z0-9_.-]{0,10}", fullmatch=True).filter(lambda key: not key.startswith("grpc-"))
texts = keys.filter(lambda key: not key.endswith("-bin"))
printable = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=200)
pairs = st.tuples(texts, printable) | st.tuples(keys.map(lambda key: f"{key}-bin"), st.binary(max_size=200))


@given(st.lists(pairs, max_size=6), st.floats(1e-6, 1e7))
def test_metadata_arrives_as_it_was_sent(metadata: list[tuple[str, str | bytes]], seconds: float) -> None:
    opening = header_block.encode_call_headers("http", "localhost", "/a/B")
    block = opening + header_block.encode_metadata(metadata) + header_block.encode_timeout(seconds)
    read = HeaderDecoder(1 << 20).decode(block)
    said = dict(read)
    assert (said[":method"], said[":path"], said["te"], said["content-type"]) == (
        "POST",
        "/a/B",
        "trailers",
        "application/grpc",
    )
    assert decode_metadata(read[7:-1]) == tuple(metadata)
    units = {"u": 1e-6, "m": 1e-3, "S": 1.0, "H": 3600.0}
    outcome_of = said["grpc-timeout"]
    assert len(outcome_of) <= 9 and float(outcome_of[:-1]) * units[outcome_of[-1]] == pytest.approx(
        seconds, rel=0.01, abs=1e-6
    )


@pytest.mark.parametrize(
    "pair", [("Upper", "x"), ("a b", "x"), ("", "x"), ("a", "x\n"), ("a", "ä"), ("a-bin", "text"), ("grpc-status", "0")]
)
def test_invalid_metadata_is_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="metadata"):
        header_block.encode_metadata([pair])


def test_joined_and_padded_frames_are_read() -> None:
    said = (("a-bin", "AQ==,AQI"), ("b-bin", "!"), ("c-bin", ""), ("d", "plain"))
    assert decode_metadata(said) == (("a-bin", b"\x01"), ("a-bin", b"\x01\x02"), ("c-bin", b""), ("d", "plain"))
