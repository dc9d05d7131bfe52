"""HPACK's Huffman code (RFC 7541, appendix B). It is canonical: how long each symbol's code is says what it is."""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

_SYMBOLS = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\x00$@[]~",
    14: b"^}",
    15: b"<`{",
    19: b"\\\xc3\xd0",
    20: b"\x80\x82\x83\xa2\xb8\xc2\xe0\xe2",
    21: b"\x99\xa1\xa7\xac\xb0\xb1\xb3\xd1\xd8\xd9\xe3\xe5\xe6",
    22: bytes.fromhex("8184858688929a9ca0a3a4a9aaadb2b5b9babbbdbec4c6e4e8e9"),
    23: bytes.fromhex("0187898a8b8c8d8f93959697989b9d9ea5a6a8aeafb4b6b7bcbfc5e7ef"),
    24: b"\t\x8e\x90\x91\x94\x9f\xab\xce\xd7\xe1\xec\xed",
    25: b"\xc7\xcf\xea\xeb",
    26: b"\xc0\xc1\xc8\xc9\xca\xcd\xd2\xd5\xda\xdb\xee\xf0\xf2\xf3\xff",
    27: bytes.fromhex("cbccd3d4d6dddedff1f4f5f6f7f8fafbfcfdfe"),
    28: bytes.fromhex("020304050607080b0c0e0f1011121314151718191a1b1c1d1e1f7fdcf9"),
    30: b"\n\r\x16",
}
"""By the length of their codes in bits. The end of a string has one, too, the last: all ones."""
_END_BITS = 30
_PADDING_BITS = 7


class _Step(NamedTuple):
    """What four more bits lead to."""

    state: int
    said: bytes
    """At most one symbol: no code is shorter than five bits."""


def codes() -> Iterator[tuple[int, int, int]]:
    """A symbol, its code, and how many bits that has."""
    code = length = 0
    for bits, symbols in _SYMBOLS.items():
        for symbol in symbols:
            code <<= bits - length
            length = bits
            yield symbol, code, bits
            code += 1


def decoded(raw: bytes) -> bytes:
    """Raises ValueError for what no encoder may say."""
    steps, ends = _machine()
    state = 0
    out = bytearray()
    for byte in raw:
        step = steps[state << 4 | byte >> 4]
        out += step.said
        step = steps[step.state << 4 | byte & 15]
        out += step.said
        state = step.state
    if state not in ends:
        raise ValueError("a Huffman code breaks off")
    return bytes(out)


@cache
def _machine() -> tuple[tuple[_Step, ...], frozenset[int]]:
    """A step for every state and every four bits, and the states in which a string may end. A state is an inner node of
    the code's tree, the root the first; the last one is for what is no code at all and cannot be left."""
    numbers = {"": 0}
    leaves: dict[str, bytes] = {}
    for symbol, code, bits in codes():
        path = f"{code:0{bits}b}"
        leaves[path] = bytes((symbol,))
        for length in range(1, bits):
            numbers.setdefault(path[:length], len(numbers))
    end = "1" * _END_BITS
    for length in range(1, _END_BITS):
        numbers.setdefault(end[:length], len(numbers))
    lost = len(numbers)
    steps = [_step(path, f"{four:04b}", numbers, leaves, lost) for path in numbers for four in range(16)]
    steps += [_Step(lost, b"")] * 16
    return tuple(steps), frozenset(numbers["1" * length] for length in range(_PADDING_BITS + 1))


def _step(path: str, bits: str, numbers: dict[str, int], leaves: dict[str, bytes], lost: int) -> _Step:
    said = b""
    for bit in bits:
        path += bit
        if path in leaves:
            said += leaves[path]
            path = ""
        elif path not in numbers:
            return _Step(lost, b"")
    return _Step(numbers[path], said)
