"""Prefix keys: a block's key identifies its tokens, all tokens before them, and the lane that computed them."""

import sys
from array import array
from collections.abc import Iterable, Sequence
from hashlib import sha256

from kvpool.block import BlockKey
from octet.identity import Lane, digest_parts

_TOKEN = "I"  # unsigned, 32 bits
_TOKEN_BYTES = array(_TOKEN).itemsize


def chain_root(lane: Lane, tenant_salt: bytes, kv_dtype: str, block_size: int) -> bytes:
    """Return a chain's root, the parent of its first block's key. Chains with different roots never share a block."""
    adapters = digest_parts(adapter.encode() for adapter in lane.adapters)
    names = (lane.specialist.encode(), lane.revision.encode(), adapters)
    return digest_parts((*names, tenant_salt, kv_dtype.encode(), str(block_size).encode()))


def _packed_tokens(tokens: Iterable[int]) -> "array[int]":
    if isinstance(tokens, bytes | bytearray | str):
        raise _not_tokens(f"got {type(tokens).__name__}")
    try:
        return array(_TOKEN, tokens)
    except (OverflowError, TypeError) as error:
        raise _not_tokens(error) from error


def as_tokens(tokens: Iterable[int]) -> tuple[int, ...]:
    """Return the tokens as a tuple. Raises ValueError for a token that is not an integer in [0, 2**32)."""
    return tuple(_packed_tokens(tokens))


def _not_tokens(why: object) -> ValueError:
    return ValueError(f"tokens must be integers in [0, 2**32): {why}")


class TokenChain:
    """A growing token sequence and the key of each full block. A key is computed once, on demand."""

    __slots__ = ("_keys", "_packed", "_tokens", "block_size", "root")

    def __init__(self, root: bytes, block_size: int, tokens: Iterable[int] = ()) -> None:
        """Raises ValueError for a token that is not an integer in [0, 2**32)."""
        self.root = root
        self.block_size = block_size
        self._tokens = _packed_tokens(tokens)
        self._keys: list[BlockKey] = []
        self._packed: list[bytes] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Add the tokens. If one is invalid, raise ValueError and add none."""
        if len(tokens) != 1:
            self._tokens.extend(_packed_tokens(tokens))
            return
        try:
            self._tokens.append(tokens[0])
        except (OverflowError, TypeError) as error:
            raise _not_tokens(error) from error

    def append(self, token: int) -> bool:
        """Add the token. If it is invalid, return False instead."""
        try:
            self._tokens.append(token)
        except (OverflowError, TypeError):
            return False
        return True

    @property
    def last(self) -> int:
        return self._tokens[-1]

    def tokens(self, start: int, stop: int) -> tuple[int, ...]:
        if stop - start == 1:
            return (self._tokens[start],)
        return tuple(self._tokens[start:stop])

    def part(self, start: int, stop: int) -> "array[int]":
        """Return the same tokens as an array, which is faster if there are many."""
        return self._tokens[start:stop]

    def view(self) -> Sequence[int]:
        """Return all tokens without copying them. Do not change the result, or keep it past the next `extend`."""
        return self._tokens

    def keys(self, num_blocks: int) -> list[BlockKey]:
        """Return the keys of at least the first `num_blocks` blocks, which must be full. Do not change the list."""
        if num_blocks > len(self._keys):
            self._hash_up_to(num_blocks)
        return self._keys

    def packed(self, num_blocks: int) -> list[bytes]:
        """Return the tokens of at least the first `num_blocks` blocks, as bytes. Do not change the list."""
        if num_blocks > len(self._keys):
            self._hash_up_to(num_blocks)
        return self._packed

    def _hash_up_to(self, num_blocks: int) -> None:
        first = len(self._keys)
        fresh = self._tokens[first * self.block_size : num_blocks * self.block_size]
        if len(fresh) < (num_blocks - first) * self.block_size:
            raise ValueError(f"{len(self)} tokens do not fill {num_blocks} blocks of {self.block_size} tokens")
        if sys.byteorder == "big":
            fresh.byteswap()
        raw = fresh.tobytes()
        stride = self.block_size * _TOKEN_BYTES
        packed = [raw[offset : offset + stride] for offset in range(0, len(raw), stride)]
        parent = self._keys[-1] if self._keys else self.root
        keys = [BlockKey(parent := sha256(parent + tokens).digest()) for tokens in packed]
        self._keys += keys
        self._packed += packed
