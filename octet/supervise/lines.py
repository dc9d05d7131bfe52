"""Whole lines out of what a process writes, however it comes."""

MAX_BYTES = 8192
"""A longer line goes on in the next one: nothing is lost, nothing grows."""


class Lines:
    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._rest = b""

    def push(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        lines = [piece for line in whole for piece in self._pieces(line)]
        *too_much, self._rest = self._pieces(self._rest)
        return lines + too_much

    def finish(self) -> list[bytes]:
        rest, self._rest = self._rest, b""
        return [rest] if rest else []

    def _pieces(self, line: bytes) -> list[bytes]:
        """At least one, none too long, and no character torn apart."""
        pieces = []
        while len(line) > self._max_bytes:
            stop = _before_character(line, self._max_bytes)
            pieces.append(line[:stop])
            line = line[stop:]
        return [*pieces, line]


def _before_character(line: bytes, stop: int) -> int:
    """The nearest place not behind `stop` where a UTF-8 character begins; `stop` where there is none near."""
    for place in range(stop, max(0, stop - 4), -1):
        if line[place] & 0xC0 != 0x80:
            return place
    return stop


def shown(line: bytes) -> str:
    """As it can be written to a terminal: nothing in it moves the cursor."""
    text = line.decode(errors="replace").rstrip("\r")
    return "".join(c if c.isprintable() or c == "\t" else f"\\x{ord(c):02x}" for c in text)
