"""Decoders of llama.cpp's block formats, one number at a time."""

import struct
from collections.abc import Callable, Iterator

import numpy as np


def _half(block: bytes, at: int) -> float:
    value: float = struct.unpack_from("<e", block, at)[0]
    return value


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def q4_0(block: bytes) -> list[float]:
    d, q = _half(block, 0), block[2:]
    return [d * ((q[i] & 15) - 8) for i in range(16)] + [d * ((q[i] >> 4) - 8) for i in range(16)]


def q4_1(block: bytes) -> list[float]:
    d, m, q = _half(block, 0), _half(block, 2), block[4:]
    return [d * (q[i] & 15) + m for i in range(16)] + [d * (q[i] >> 4) + m for i in range(16)]


def q8_0(block: bytes) -> list[float]:
    d = _half(block, 0)
    return [d * _signed(byte) for byte in block[2:]]


def _six_bits(packed: bytes, j: int) -> tuple[int, int]:
    if j < 4:
        return packed[j] & 63, packed[j + 4] & 63
    return (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4, (packed[j + 4] >> 4) | (packed[j] >> 6) << 4


def q4_k(block: bytes) -> list[float]:
    d, dmin, packed, q = _half(block, 0), _half(block, 2), block[4:16], block[16:]
    values: list[float] = []
    for pair in range(4):
        for shift, j in ((0, 2 * pair), (4, 2 * pair + 1)):
            sc, m = _six_bits(packed, j)
            values += [d * sc * (byte >> shift & 15) - dmin * m for byte in q[32 * pair : 32 * pair + 32]]
    return values


def q6_k(block: bytes) -> list[float]:
    d, values = _half(block, 208), [0.0] * 256
    for half in range(2):
        low, high, sc = block[64 * half :], block[128 + 32 * half :], block[192 + 8 * half :]
        for i in range(32):
            for run, nibble in enumerate((low[i] & 15, low[i + 32] & 15, low[i] >> 4, low[i + 32] >> 4)):
                q = (nibble | (high[i] >> 2 * run & 3) << 4) - 32
                values[128 * half + 32 * run + i] = d * _signed(sc[2 * run + i // 16]) * q
    return values


NAIVE: dict[str, tuple[int, Callable[[bytes], list[float]]]] = {
    "Q4_0": (18, q4_0),
    "Q4_1": (20, q4_1),
    "Q8_0": (34, q8_0),
    "Q4_K": (144, q4_k),
    "Q6_K": (210, q6_k),
}


def dequantize(kind: str, data: bytes, shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    size, read = NAIVE[kind]
    blocks: Iterator[bytes] = (data[at : at + size] for at in range(0, len(data), size))
    return np.array([value for block in blocks for value in read(block)]).reshape(shape)
