"""The frames of HTTP/2: nine bytes of head, and what they are the head of."""

from collections.abc import Iterator
from struct import Struct, error, iter_unpack
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA: Final = 0x0
HEADERS: Final = 0x1
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITISED: Final = 0x20

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

HEAD: Final = Struct(">IBI")
"""Length and kind together, flags, stream."""
HEAD_BYTES: Final = HEAD.size
FRAME_BYTES: Final = 16_384
"""The most that a frame carries unless somebody has allowed more."""
MOST_FRAME_BYTES: Final = 2**24 - 1
USUAL_WINDOW: Final = 65_535
USUAL_TABLE: Final = 4096
"""Bytes of headers that each side keeps."""
MOST_WINDOW: Final = 2**31 - 1
LAST_STREAM: Final = 2**31 - 1
_PING_BYTES = 8
_SETTING = ">HI"


def head(length: int, kind: int, flags: int, stream: int) -> bytes:
    return HEAD.pack(length << 8 | kind, flags, stream)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    pairs = (name.to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in values.items())
    return frame(SETTINGS, 0, 0, b"".join(pairs))


def settings_of(payload: bytes) -> Iterator[tuple[int, int]]:
    """Raises ValueError."""
    try:
        return iter_unpack(_SETTING, payload)
    except error:
        raise ValueError("settings are six bytes each") from None


def window_update(stream: int, more: int) -> bytes:
    return head(4, WINDOW_UPDATE, 0, stream) + more.to_bytes(4, "big")


def reset(stream: int, code: int) -> bytes:
    return head(4, RST_STREAM, 0, stream) + code.to_bytes(4, "big")


def goaway(code: int, why: str = "") -> bytes:
    """No stream of the other side's was ever begun."""
    return frame(GOAWAY, 0, 0, (0).to_bytes(4, "big") + code.to_bytes(4, "big") + why.encode()[:256])


def ping(number: int, flags: int = 0) -> bytes:
    return frame(PING, flags, 0, number.to_bytes(_PING_BYTES, "big"))


def header_frames(stream: int, block: bytes, most: int) -> bytes:
    """One after the other until the block is out; nothing may come between."""
    if len(block) <= most:
        return frame(HEADERS, END_HEADERS, stream, block)
    parts = [block[at : at + most] for at in range(0, len(block), most)]
    kinds = [HEADERS] + [CONTINUATION] * (len(parts) - 1)
    flags = [0] * (len(parts) - 1) + [END_HEADERS]
    return b"".join(frame(kind, flag, stream, part) for kind, flag, part in zip(kinds, flags, parts, strict=True))
