"""Blocks of headers, written. Nothing is put into the other side's table: a block means the same on any connection."""

from functools import lru_cache

from octet.rpc.http2.metadata import Pairs, text_of

_POST = b"\x83"
_SCHEMES = {"http": b"\x86", "https": b"\x87"}
"""By their numbers in the static table."""
_AUTHORITY, _PATH, _CONTENT_TYPE, _USER_AGENT = 1, 4, 31, 58
_PLAIN = b"\x00"
"""Begins a literal that no table is to keep, and whose name is spelled out."""
NO_TABLE = b"\x20"
"""Makes the table one of no entries, which is what is used of it."""
_UNITS = ((1e6, "u"), (1e3, "m"), (1.0, "S"))
_MOST_TIMEOUT = 99_999_999
"""Eight digits."""


def opening(scheme: str, authority: str, path: str) -> bytes:
    """What every call of a method begins with."""
    return b"".join(
        (
            _POST,
            _SCHEMES[scheme],
            _named(_PATH, path),
            _named(_AUTHORITY, authority),
            literal("te", "trailers"),
            _named(_CONTENT_TYPE, "application/grpc"),
            _named(_USER_AGENT, "octet"),
        )
    )


def deadline(seconds: float) -> bytes:
    """How long the other side has, to the microsecond where that can be said."""
    return _TIMEOUT + string(_timeout(seconds))


def _timeout(seconds: float) -> bytes:
    for factor, unit in _UNITS:
        if seconds * factor < _MOST_TIMEOUT:
            return b"%d%s" % (max(1, round(seconds * factor)), unit.encode())
    return b"%dH" % min(_MOST_TIMEOUT, round(seconds / 3600))


def custom(metadata: Pairs) -> bytes:
    """A call's own. Raises ValueError for what no header can carry."""
    return b"".join([_name(key) + string(text_of(key, value)) for key, value in metadata])


def literal(name: str, value: str) -> bytes:
    return _PLAIN + string(name.encode()) + string(value.encode())


def string(raw: bytes) -> bytes:
    return integer(len(raw), 7) + raw


def integer(value: int, bits: int, first: int = 0) -> bytes:
    """Behind the upper bits of `first`."""
    most = (1 << bits) - 1
    if value < most:
        return bytes((first | value,))
    out = bytearray((first | most,))
    value -= most
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _named(index: int, value: str) -> bytes:
    return integer(index, 4) + string(value.encode())


@lru_cache(256)
def _name(key: str) -> bytes:
    allowed = key.isascii() and key.replace("-", "").replace("_", "").replace(".", "").isalnum() and key == key.lower()
    if not allowed or key.startswith("grpc-"):
        raise ValueError(f"metadata cannot be called {key!r}")
    return _PLAIN + string(key.encode())


_TIMEOUT = _PLAIN + string(b"grpc-timeout")
