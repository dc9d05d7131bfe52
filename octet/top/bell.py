"""News from another thread, as something to wait for beside keys and signals."""

import socket
from contextlib import suppress


class Bell:
    """Rung by anybody, any number of times; heard once."""

    def __init__(self) -> None:
        self._out, self._in = socket.socketpair()
        self._out.setblocking(False)
        self._in.setblocking(False)

    def __enter__(self) -> "Bell":
        return self

    def __exit__(self, *_: object) -> None:
        self._out.close()
        self._in.close()

    @property
    def fd(self) -> int:
        """Readable when it has been rung."""
        return self._out.fileno()

    def ring(self) -> None:
        with suppress(OSError):  # it has been rung more often than anybody could hear
            self._in.send(b"!")

    def hear(self) -> None:
        with suppress(BlockingIOError):
            self._out.recv(4096)
