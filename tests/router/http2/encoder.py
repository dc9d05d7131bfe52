"""A header encoder with every form of HPACK, for tests of the decoder."""

from collections import deque
from dataclasses import dataclass

from router.dispatch.http2.frames import encode_integer
from router.dispatch.http2.hpack_tables import STATIC_TABLE, Header, huffman_codes

_CODES = {symbol: f"{code:0{bits}b}" for symbol, code, bits in huffman_codes()}


@dataclass(frozen=True)
class HeaderForm:
    """The form in which a header is encoded."""

    use_index: bool = True
    remember: bool = True
    huffman: bool = True
    never: bool = False


def huffman(raw: bytes) -> bytes:
    bits = "".join(_CODES[byte] for byte in raw)
    bits += "1" * (-len(bits) % 8)
    return int(bits or "0", 2).to_bytes(len(bits) // 8, "big")


class Encoder:
    def __init__(self) -> None:
        self._table: deque[Header] = deque()
        self._most = 4096

    def resize(self, most: int) -> bytes:
        self._most = most
        self._evict()
        return encode_integer(most, 5, 0x20)

    def encode(self, header: Header, form: HeaderForm) -> bytes:
        known = [*STATIC_TABLE, *self._table]
        if form.use_index and header in known:
            return encode_integer(known.index(header) + 1, 7, 0x80)
        names = [name for name, _ in known]
        bits, first = (6, 0x40) if form.remember else (4, 0x10 if form.never else 0)
        if form.use_index and header[0] in names:
            block = encode_integer(names.index(header[0]) + 1, bits, first)
        else:
            block = encode_integer(0, bits, first) + _string(header[0], form)
        block += _string(header[1], form)
        if form.remember:
            self._table.appendleft(header)
            self._evict()
        return block

    def _evict(self) -> None:
        while sum(len(name) + len(value) + 32 for name, value in self._table) > self._most:
            self._table.pop()


def _string(text: str, form: HeaderForm) -> bytes:
    raw = text.encode("latin-1")
    if form.huffman:
        raw = huffman(raw)
    return encode_integer(len(raw), 7, 0x80 if form.huffman else 0) + raw
