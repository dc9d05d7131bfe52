"""A block of headers that comes in more than one frame."""

from octet.rpc.http2.errors import ENHANCE_YOUR_CALM, ConnectionBroken

MOST_BYTES = 64 << 10
MOST_FRAMES = 64


class SplitBlock:
    def __init__(self, stream: int, first: bytes, is_last: bool) -> None:
        """`is_last`: nothing follows it on its stream."""
        self.stream = stream
        self.is_last = is_last
        self._parts = [first]
        self._num_bytes = len(first)

    def add(self, part: bytes) -> None:
        """Raises ConnectionBroken for one that does not end."""
        self._parts.append(part)
        self._num_bytes += len(part)
        if self._num_bytes > MOST_BYTES or len(self._parts) > MOST_FRAMES:
            raise ConnectionBroken(ENHANCE_YOUR_CALM, "headers without an end")

    def whole(self) -> bytes:
        return b"".join(self._parts)
