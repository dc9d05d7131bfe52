"""Blocks of headers, read: HPACK's decoder, and the table that it shares with one encoder."""

from collections import deque

from octet.rpc.http2.errors import COMPRESSION_ERROR, ConnectionBroken, HeadersTooLong
from octet.rpc.http2.huffman import decoded
from octet.rpc.http2.static_table import STATIC, Header, Headers

TABLE_BYTES = 4096
MOST_LIST_BYTES = 64 << 10
"""Of one call's headers, as HPACK counts them."""
_ENTRY_BYTES = 32
"""What every entry counts beyond its letters."""
_FAR = 3
"""So many times more than may be is no mistake."""
_MOST_SHIFT = 28
_MOST_KNOWN = 64
_LONGEST_KNOWN = 256


class HeaderDecoder:
    """Of one connection: every block must go through it, in order."""

    def __init__(self, most_list: int = MOST_LIST_BYTES) -> None:
        self._most_list = most_list
        self._table: deque[Header] = deque()
        """The newest first."""
        self._table_bytes = 0
        self._most_table = TABLE_BYTES
        self._known: dict[bytes, Headers] = {}
        """Blocks that change nothing in the table mean the same until something does: most calls' are of the few kinds
        that were there before."""

    def decode(self, block: bytes) -> Headers:
        """Raises ConnectionBroken, and HeadersTooLong once the table is as it must be."""
        known = self._known.get(block)
        if known is not None:
            return known
        try:
            found = self._decode(block)
        except (IndexError, ValueError) as error:
            raise ConnectionBroken(COMPRESSION_ERROR, f"headers that cannot be read: {error}") from None
        return found

    def _decode(self, block: bytes) -> Headers:
        reader = _Reader(block)
        changes = reader.first >> 5 == 0b001
        while reader.is_more and reader.first >> 5 == 0b001:
            self._resize(reader.integer(5))
        found: list[Header] = []
        room = self._most_list
        while reader.is_more:
            first = reader.first
            if first & 0x80:
                header = self._entry(reader.integer(7))
            elif first & 0x40:
                header = self._literal(reader, 6)
                self._remember(header)
                changes = True
            elif first & 0x20:
                raise ValueError("the table changes its size between headers")
            else:
                header = self._literal(reader, 4)
            room -= _size(header)
            if room >= 0:
                found.append(header)
            elif room < -_FAR * self._most_list:
                raise ValueError("there are far too many")
        if changes:
            self._known.clear()
        if room < 0:
            raise HeadersTooLong(f"headers of more than {self._most_list:,} bytes")
        headers = tuple(found)
        if not changes and len(block) <= _LONGEST_KNOWN and len(self._known) < _MOST_KNOWN:
            self._known[block] = headers
        return headers

    def _entry(self, index: int) -> Header:
        if not index:
            raise ValueError("a header without a number")
        return STATIC[index - 1] if index <= len(STATIC) else self._table[index - len(STATIC) - 1]

    def _literal(self, reader: "_Reader", bits: int) -> Header:
        index = reader.integer(bits)
        name = self._entry(index)[0] if index else reader.text()
        return name, reader.text()

    def _remember(self, header: Header) -> None:
        self._table.appendleft(header)
        self._table_bytes += _size(header)
        self._evict()

    def _resize(self, most: int) -> None:
        if most > TABLE_BYTES:
            raise ValueError("a table that is larger than allowed")
        self._most_table = most
        self._evict()

    def _evict(self) -> None:
        while self._table_bytes > self._most_table:
            self._table_bytes -= _size(self._table.pop())


class _Reader:
    """Raises IndexError and ValueError where the block breaks off."""

    def __init__(self, block: bytes) -> None:
        self._block = block
        self._at = 0

    @property
    def is_more(self) -> bool:
        return self._at < len(self._block)

    @property
    def first(self) -> int:
        return self._block[self._at] if self.is_more else 0

    def integer(self, bits: int) -> int:
        most = (1 << bits) - 1
        value = self._next() & most
        if value < most:
            return value
        shift = 0
        while True:
            byte = self._next()
            value += (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift >= _MOST_SHIFT:
                raise ValueError("a number that is too large")

    def text(self) -> str:
        is_coded = self._block[self._at] & 0x80
        length = self.integer(7)
        raw = self._block[self._at : self._at + length]
        self._at += length
        if len(raw) < length:
            raise ValueError("a string breaks off")
        return (decoded(raw) if is_coded else raw).decode("latin-1")

    def _next(self) -> int:
        byte = self._block[self._at]
        self._at += 1
        return byte


def _size(header: Header) -> int:
    return len(header[0]) + len(header[1]) + _ENTRY_BYTES
