"""Hashed text features: words, word pairs, letter groups and punctuation pairs.

All prompts of a batch are one byte array. A prefix sum of byte * BASE**position, modulo 2**64, gives the hash of any
range in constant time and independent of its position, so a prompt has the same features alone and in a batch.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BUCKET_BITS = 20
FAMILIES = ("word", "pair", "letters", "punctuation")
LETTER_GROUPS = (4, 5)

_SPACE, _JOIN = 0x20, 0x5F
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 2**64)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_SALTS = tuple(np.uint64(pow(_BASE, n + 2, 2**64)) for n in range(len(FAMILIES)))
_SHIFT = np.uint64(64 - BUCKET_BITS)

Bytes = NDArray[np.uint8]
Hashes = NDArray[np.uint64]
Places = NDArray[np.intp]


class Features(NamedTuple):
    """The features of a batch, one entry per occurrence: the index of its prompt, its family and its bucket."""

    prompt: Places
    family: NDArray[np.uint8]
    bucket: NDArray[np.uint32]


def _byte_table() -> bytes:
    """Return a table that maps letters to lower case, digits to 0, and bytes outside words to spaces."""
    table = bytearray([_SPACE]) * 256
    for byte in range(256):
        letter = chr(byte)
        if byte >= 0x80 or letter == "_" or letter.isalpha():
            table[byte] = ord(letter.lower()) if byte < 0x80 else byte
        elif letter.isdigit():
            table[byte] = ord("0")
    return bytes(table)


_TABLE = _byte_table()


MAX_BATCH_BYTES = 1 << 16


def _powers(base: int) -> Hashes:
    """Return base**n for every position n in a batch."""
    row = np.full(MAX_BATCH_BYTES + 2, base, dtype=np.uint64)
    row[0] = 1
    return np.multiply.accumulate(row)


_UP, _DOWN = _powers(_BASE), _powers(_INVERSE)


def extract_features(samples: Sequence[bytes]) -> Features:
    """Return the features of a batch. Raises ValueError if the samples together exceed MAX_BATCH_BYTES."""
    raw = b"\n" + b"\n".join(samples) + b"\n"
    if len(raw) > MAX_BATCH_BYTES:
        raise ValueError(f"the batch has {len(raw)} bytes; the limit is {MAX_BATCH_BYTES}")
    text = np.frombuffer(raw.translate(_TABLE), dtype=np.uint8)
    ends = np.cumsum([len(s) + 1 for s in samples])  # index in raw of the newline after each sample
    is_word = text != _SPACE
    keep = is_word.copy()
    keep[0] = True
    keep[1:] |= is_word[:-1]
    packed = np.flatnonzero(keep)
    owner = np.searchsorted(ends, packed) if len(samples) > 1 else np.zeros(len(packed), dtype=np.intp)
    words = _PackedWords(text[packed], owner)
    parts = [words.words(), words.pairs(), words.letters(), _punctuation(np.frombuffer(raw, np.uint8), is_word, ends)]
    mixed = [(hashes ^ salt) * _MIX for (_, hashes), salt in zip(parts, _SALTS, strict=True)]
    buckets = [(each >> _SHIFT).astype(np.uint32) for each in mixed]
    family = np.repeat(np.arange(len(parts), dtype=np.uint8), [len(b) for b in buckets])
    return Features(np.concatenate([prompt for prompt, _ in parts]), family, np.concatenate(buckets))


class _PackedWords:
    """Text with exactly one space before, between and after words. Its methods return features as two arrays: the index
    of each feature's prompt, and its hash."""

    def __init__(self, text: Bytes, owner: Places) -> None:
        self.text, self.owner = text, owner
        self.prefix = np.zeros(len(text) + 1, dtype=np.uint64)
        np.cumsum(text * _UP[: len(text)], out=self.prefix[1:])
        self.spaces = np.flatnonzero(text == _SPACE)

    def hashes(self, start: Places, end: Places) -> Hashes:
        return (self.prefix[end] - self.prefix[start]) * _DOWN[start]

    def words(self) -> tuple[Places, Hashes]:
        """Return every word and, for words with underscores, every part between underscores."""
        start, end = self.spaces[:-1] + 1, self.spaces[1:]
        joints = np.flatnonzero((self.text == _JOIN) | (self.text == _SPACE))
        if len(joints) > len(self.spaces):
            part_start, part_end = joints[:-1] + 1, joints[1:]
            joined = (self.text[part_start - 1] == _JOIN) | (self.text[part_end] == _JOIN)
            true_part = joined & (part_end > part_start)
            start = np.concatenate([start, part_start[true_part]])
            end = np.concatenate([end, part_end[true_part]])
        return self.owner[start], self.hashes(start, end)

    def pairs(self) -> tuple[Places, Hashes]:
        """Return pairs of adjacent words of a prompt, with the space between them."""
        start, end = self.spaces[:-2] + 1, self.spaces[2:]
        same = self.owner[start] == self.owner[end - 1]
        start, end = start[same], end[same]
        return self.owner[start], self.hashes(start, end)

    def letters(self) -> tuple[Places, Hashes]:
        """Return the letter groups of each word. A group may include the space before or after the word."""
        crossed = np.cumsum(self.text == _SPACE)
        found = [self._group(size, crossed) for size in LETTER_GROUPS]
        return np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found])

    def _group(self, size: int, crossed: Places) -> tuple[Places, Hashes]:
        last = len(self.text) - size
        if last < 0:
            return np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.uint64)
        start = np.flatnonzero(crossed[size - 2 : last + size - 1] == crossed[: last + 1])
        # Spaces belong to the prompt before them, so the first letter determines the owner.
        return self.owner[start + 1], self.hashes(start, start + size)


def _punctuation(raw: Bytes, is_word: NDArray[np.bool_], ends: Places) -> tuple[Places, Hashes]:
    """Return pairs of adjacent bytes outside words."""
    outside = is_word.copy()
    outside[0] = True
    outside[ends] = True
    start = np.flatnonzero(~(outside[:-1] | outside[1:]))
    hashes = raw[start].astype(np.uint64) * np.uint64(256) + raw[start + 1]
    return (np.searchsorted(ends, start) if len(ends) > 1 else np.zeros(len(start), dtype=np.intp)), hashes
