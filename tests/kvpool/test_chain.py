"""A block's key identifies exactly its tokens, all tokens before them, and the lane that computed them."""

import struct
from dataclasses import replace
from hashlib import sha256
from itertools import combinations
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpool import BlockKey, TokenChain, chain_root
from octet.identity import Lane

ONE, TWO = "1" * 64, "2" * 64
LANE = Lane("writer", "0" * 64, (ONE, TWO))
ROOT = chain_root(LANE, b"tenant", "float16", 16)

any_token = st.integers(0, 2**32 - 1)
block_sizes = st.integers(1, 4)


def all_keys(chain: TokenChain) -> list[BlockKey]:
    return list(chain.keys(len(chain) // chain.block_size))


def length_prefixed(*parts: bytes) -> bytes:
    return b"".join(struct.pack("<Q", len(part)) + part for part in parts)


def test_every_part_of_an_identity_changes_the_root() -> None:
    roots = [
        ROOT,
        chain_root(replace(LANE, specialist="reader"), b"tenant", "float16", 16),
        chain_root(replace(LANE, revision="f" * 64), b"tenant", "float16", 16),
        chain_root(replace(LANE, adapters=()), b"tenant", "float16", 16),
        chain_root(replace(LANE, adapters=(ONE,)), b"tenant", "float16", 16),
        chain_root(replace(LANE, adapters=(TWO, ONE)), b"tenant", "float16", 16),
        chain_root(LANE, b"", "float16", 16),
        chain_root(LANE, b"other tenant", "float16", 16),
        chain_root(LANE, b"tenant", "bfloat16", 16),
        chain_root(LANE, b"tenant", "float16", 32),
    ]
    assert len(set(roots)) == len(roots)


def test_bytes_never_move_between_neighbouring_parts() -> None:
    assert chain_root(LANE, b"a", "bc", 1) != chain_root(LANE, b"ab", "c", 1)
    assert chain_root(LANE, b"", "int8", 16) != chain_root(LANE, b"", "int", 816)
    assert chain_root(LANE, b"", "int8", 16) != chain_root(LANE, b"int8", "", 16)


def test_root_is_the_published_hash() -> None:
    adapters = sha256(length_prefixed(ONE.encode(), TWO.encode())).digest()
    parts = length_prefixed(b"writer", b"0" * 64, adapters, b"tenant", b"float16", b"16")
    assert sha256(parts).digest() == ROOT


def test_key_is_the_published_hash_of_little_endian_tokens() -> None:
    chain = TokenChain(ROOT, 2, [1, 2**32 - 1, 0x01020304, 5, 6])
    first = sha256(ROOT + bytes.fromhex("01000000 ffffffff")).digest()
    second = sha256(first + bytes.fromhex("04030201 05000000")).digest()
    assert all_keys(chain) == [first, second]
    assert chain.packed(2) == [bytes.fromhex("01000000 ffffffff"), bytes.fromhex("04030201 05000000")]


@given(st.lists(any_token, max_size=20), block_sizes, st.sets(st.integers(0, 20)))
def test_keys_do_not_depend_on_how_the_chain_grew(tokens: list[int], block_size: int, asked_at: set[int]) -> None:
    grown = TokenChain(ROOT, block_size)
    for length, token in enumerate(tokens, start=1):
        grown.extend([token])
        if length in asked_at:
            all_keys(grown)
    whole = TokenChain(ROOT, block_size, tokens)
    assert all_keys(grown) == all_keys(whole)
    assert grown.packed(0) == whole.packed(0)
    assert tuple(grown.view()) == tuple(whole.view()) == tuple(tokens)


@given(st.lists(any_token, min_size=1, max_size=20), block_sizes, st.data())
def test_a_token_changes_its_own_key_and_all_later_ones(
    tokens: list[int], block_size: int, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(tokens) - 1))
    changed = [*tokens]
    changed[place] = data.draw(any_token.filter(lambda other: other != tokens[place]))
    pairs = zip(
        all_keys(TokenChain(ROOT, block_size, tokens)), all_keys(TokenChain(ROOT, block_size, changed)), strict=True
    )
    assert [before == after for before, after in pairs] == [
        block < place // block_size for block in range(len(tokens) // block_size)
    ]


@given(st.lists(any_token, min_size=1, max_size=8), block_sizes)
def test_no_two_blocks_of_a_chain_share_a_key(tokens: list[int], block_size: int) -> None:
    keys = all_keys(TokenChain(ROOT, block_size, tokens * 3))
    assert all(one != other for one, other in combinations(keys, 2))


@given(st.lists(any_token, max_size=12), block_sizes, st.integers(1, 3))
def test_a_block_that_is_not_full_has_no_key(tokens: list[int], block_size: int, beyond: int) -> None:
    chain = TokenChain(ROOT, block_size, tokens)
    num_full = len(tokens) // block_size
    for ask in (chain.keys, chain.packed):
        with pytest.raises(ValueError, match="do not fill"):
            ask(num_full + beyond)
    assert len(chain.keys(num_full)) == len(chain.packed(num_full)) == num_full


NOT_TOKENS = [-1, 2**32, 2**64, 1.0, float("nan"), "1", "", None, b"1"]


@pytest.mark.parametrize("value", NOT_TOKENS, ids=repr)
def test_a_chain_refuses_invalid_tokens(value: object) -> None:
    with pytest.raises(ValueError, match="tokens must be integers"):
        TokenChain(ROOT, 1, [0, cast(int, value)])


@pytest.mark.parametrize("value", NOT_TOKENS, ids=repr)
def test_appending_an_invalid_token_is_refused(value: object) -> None:
    chain = TokenChain(ROOT, 1, [0])
    with pytest.raises(ValueError, match="tokens must be integers"):
        chain.extend([cast(int, value)])
    assert not chain.append(cast(int, value))
    assert tuple(chain.view()) == (0,)
    assert chain.append(5) and tuple(chain.view()) == (0, 5)


@pytest.mark.parametrize("text", [b"", b"1234", bytearray(b"1234"), "1234"], ids=repr)
def test_text_is_not_taken_for_tokens(text: bytes | bytearray | str) -> None:
    """An array made from bytes would read them as raw memory, four bytes per token."""
    with pytest.raises(ValueError, match="tokens must be integers"):
        TokenChain(ROOT, 1, cast(list[int], text))


@given(tokens=st.lists(any_token, min_size=1, max_size=9), start=st.integers(0, 9), stop=st.integers(0, 9))
def test_a_part_of_a_chain_is_a_copy_of_its_tokens(tokens: list[int], start: int, stop: int) -> None:
    chain = TokenChain(ROOT, 4, tokens)
    part = chain.part(start, stop)
    assert tuple(part) == chain.tokens(start, max(start, stop)) if start < len(tokens) else not part
    part.append(7)
    assert list(chain.view()) == tokens and chain.last == tokens[-1]
