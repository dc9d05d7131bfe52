"""An answer as it came, kept for later. Reading it is left to whoever has time."""

from array import array
from itertools import pairwise

from google.protobuf.message import DecodeError

from octet.v1 import specialist_pb2 as wire
from router.after.room import Room

_CHUNK = b"\x12"
"""How an event with a chunk begins, a replica's and a router's."""
_FRAME = 4
"""Bytes to remember where a chunk ends."""
_RAW_PER_TEXT = 8
"""A chunk of one token takes four to eight times as many bytes as its text, frame and all."""
_EXTRA = 1024


class Kept:
    """Belongs to the event loop, but for `text`. Too much of it, or no room, and nothing is kept at all."""

    __slots__ = ("_ends", "_most", "_most_text", "_raw", "_room", "num_bytes", "whole")

    def __init__(self, room: Room, most_text: int) -> None:
        """`most_text` in bytes of UTF-8."""
        self._room = room
        self._most_text = most_text
        self._most = most_text * _RAW_PER_TEXT + _EXTRA
        self._raw = bytearray()
        self._ends = array("I")
        self.num_bytes = 0
        """Taken from the room."""
        self.whole = True
        """Nothing has been left out."""

    def add(self, raw: bytes) -> bool:
        """A chunk event. False when it is too much, now or before."""
        weight = len(raw) + _FRAME
        if not self.whole or self.num_bytes + weight > self._most or not self._room.take(weight):
            self.drop()
            return False
        self.num_bytes += weight
        self._raw += raw
        self._ends.append(len(self._raw))
        return True

    def text(self) -> str | None:
        """None when it was too long or is none. Takes about two microseconds a chunk, on any thread."""
        raw, ends, whole = bytes(self._raw), self._ends, self.whole
        if not whole:
            return None
        try:
            text = "".join(_text_of(raw[start:end]) for start, end in pairwise((0, *ends)))
        except DecodeError:
            return None
        return text if len(text.encode()) <= self._most_text else None

    def drop(self) -> None:
        """Whoever reads it on another thread reads on."""
        self.whole = False
        self._raw, self._ends = bytearray(), array("I")
        self._room.give(self.num_bytes)
        self.num_bytes = 0


def is_chunk(raw: bytes) -> bool:
    return raw[:1] == _CHUNK


def _text_of(raw: bytes) -> str:
    text: str = wire.GenerateEvent.FromString(raw).chunk.text
    return text
