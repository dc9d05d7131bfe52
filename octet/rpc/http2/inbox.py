"""The messages of one call, put together from what its frames carry: each is a flag, a length and so many bytes."""

from collections import deque
from struct import Struct

import grpc

from octet.rpc.http2.status import Status

_PREFIX = Struct(">BI")
_PREFIX_BYTES = _PREFIX.size


def framed(message: bytes) -> bytes:
    return _PREFIX.pack(0, len(message)) + message


class MessageRefused(Exception):
    def __init__(self, status: Status) -> None:
        super().__init__(status.details)
        self.status = status


class Inbox:
    __slots__ = ("_most", "_pending", "messages")

    def __init__(self, most: int) -> None:
        """`most` bytes of one message."""
        self._most = most
        self._pending = bytearray()
        self.messages: deque[bytes] = deque()
        """Whole, and not read yet."""

    @property
    def num_pending(self) -> int:
        """Bytes of a message that is not whole yet."""
        return len(self._pending)

    @property
    def num_missing(self) -> int:
        """Bytes that a message which has begun lacks, as far as is known."""
        pending = self._pending
        if len(pending) < _PREFIX_BYTES:
            return _PREFIX_BYTES - len(pending) if pending else 0
        return self._size(pending, 0) - len(pending)

    def take(self, data: bytes, at: int, end: int) -> None:
        """Raises MessageRefused."""
        if not self._pending and end - at >= _PREFIX_BYTES and at + self._size(data, at) == end:
            self.messages.append(data[at + _PREFIX_BYTES : end])
        elif end > at:
            self._pending += data[at:end]
            self._split()

    def _split(self) -> None:
        pending, at = self._pending, 0
        while len(pending) - at >= _PREFIX_BYTES:
            end = at + self._size(pending, at)
            if len(pending) < end:
                break
            with memoryview(pending) as view:
                self.messages.append(bytes(view[at + _PREFIX_BYTES : end]))
            at = end
        del pending[:at]

    def _size(self, data: bytes | bytearray, at: int) -> int:
        """Of the message that begins there, with what stands before it."""
        flag, size = _PREFIX.unpack_from(data, at)
        if flag:
            raise MessageRefused(
                Status(grpc.StatusCode.INTERNAL, "a message is compressed, which nobody has agreed to")
            )
        if size > self._most:
            details = f"Received message larger than max ({size} vs. {self._most})"
            raise MessageRefused(Status(grpc.StatusCode.RESOURCE_EXHAUSTED, details))
        return _PREFIX_BYTES + int(size)
