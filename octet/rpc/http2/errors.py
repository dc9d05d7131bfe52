"""What HTTP/2 calls an error, and which of them end a connection."""

from typing import Final

NO_ERROR: Final = 0x0
PROTOCOL_ERROR: Final = 0x1
INTERNAL_ERROR: Final = 0x2
FLOW_CONTROL_ERROR: Final = 0x3
SETTINGS_TIMEOUT: Final = 0x4
STREAM_CLOSED: Final = 0x5
FRAME_SIZE_ERROR: Final = 0x6
REFUSED_STREAM: Final = 0x7
CANCEL: Final = 0x8
COMPRESSION_ERROR: Final = 0x9
CONNECT_ERROR: Final = 0xA
ENHANCE_YOUR_CALM: Final = 0xB
INADEQUATE_SECURITY: Final = 0xC
HTTP_1_1_REQUIRED: Final = 0xD

_NAMES = {number: name for name, number in globals().items() if name.isupper() and isinstance(number, int)}


def name_of(code: int) -> str:
    return _NAMES.get(code, f"error {code:#x}")


class ConnectionBroken(Exception):
    """The other side has broken the rules: nothing more is believed on this connection."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class HeadersTooLong(Exception):
    """Of one stream: they were read, and are not kept."""
