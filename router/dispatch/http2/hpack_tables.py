"""The tables of HPACK (RFC 7541): the Huffman code and the static header table."""

from collections.abc import Iterator
from functools import cache
from typing import TypeAlias

Header: TypeAlias = tuple[str, str]
Headers: TypeAlias = tuple[Header, ...]

_HUFFMAN_SYMBOLS = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\x00$@[]~",
    14: b"^}",
    15: b"<`{",
    19: b"\\\xc3\xd0",
    20: b"\x80\x82\x83\xa2\xb8\xc2\xe0\xe2",
    21: b"\x99\xa1\xa7\xac\xb0\xb1\xb3\xd1\xd8\xd9\xe3\xe5\xe6",
    22: bytes.fromhex("8184858688929a9ca0a3a4a9aaadb2b5b9babbbdbec4c6e4e8e9"),
    23: bytes.fromhex("0187898a8b8c8d8f93959697989b9d9ea5a6a8aeafb4b6b7bcbfc5e7ef"),
    24: b"\t\x8e\x90\x91\x94\x9f\xab\xce\xd7\xe1\xec\xed",
    25: b"\xc7\xcf\xea\xeb",
    26: b"\xc0\xc1\xc8\xc9\xca\xcd\xd2\xd5\xda\xdb\xee\xf0\xf2\xf3\xff",
    27: bytes.fromhex("cbccd3d4d6dddedff1f4f5f6f7f8fafbfcfdfe"),
    28: bytes.fromhex("020304050607080b0c0e0f1011121314151718191a1b1c1d1e1f7fdcf9"),
    30: b"\n\r\x16",
}
"""Symbols by code length in bits (RFC 7541, appendix B). The code is canonical, so the lengths define it."""
_MAX_PADDING_BITS = 7


def huffman_codes() -> Iterator[tuple[int, int, int]]:
    """Yield every symbol with its code and the code's length."""
    code = length = 0
    for bits, symbols in _HUFFMAN_SYMBOLS.items():
        for symbol in symbols:
            code <<= bits - length
            length = bits
            yield symbol, code, bits
            code += 1


@cache
def _huffman_tables() -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]]]:
    """Return two tables of (symbol, code length), keyed by strings of bits: the first by every code, the second by
    every byte that begins with a code."""
    codes = {f"{code:0{bits}b}": (symbol, bits) for symbol, code, bits in huffman_codes()}
    starts = ((f"{byte:08b}", code) for byte in range(256) for code in codes if len(code) <= 8)
    return codes, {byte: codes[code] for byte, code in starts if byte.startswith(code)}


def huffman_decode(raw: bytes) -> bytes:
    """Return the decoded bytes. Raises ValueError for an invalid encoding."""
    codes, codes_by_byte = _huffman_tables()
    bits = f"{int.from_bytes(raw, 'big'):0{8 * len(raw)}b}" if raw else ""
    out, at = bytearray(), 0
    while at < len(bits):
        found = codes_by_byte.get(bits[at : at + 8])
        if found is None:
            found = next((codes[part] for n in _HUFFMAN_SYMBOLS if (part := bits[at : at + n]) in codes), None)
        if found is None:
            break
        out.append(found[0])
        at += found[1]
    padding = bits[at:]
    if len(padding) > _MAX_PADDING_BITS or "0" in padding:
        raise ValueError("truncated Huffman code")
    return bytes(out)


_STATIC_ENTRIES = (
    ":authority;:method GET;:method POST;:path /;:path /index.html;:scheme http;:scheme https;"
    ":status 200;:status 204;:status 206;:status 304;:status 400;:status 404;:status 500;accept-charset;"
    "accept-encoding gzip, deflate;accept-language;accept-ranges;accept;access-control-allow-origin;age;"
    "allow;authorization;cache-control;content-disposition;content-encoding;content-language;"
    "content-length;content-location;content-range;content-type;cookie;date;etag;expect;expires;from;"
    "host;if-match;if-modified-since;if-none-match;if-range;if-unmodified-since;last-modified;link;"
    "location;max-forwards;proxy-authenticate;proxy-authorization;range;referer;refresh;retry-after;"
    "server;set-cookie;strict-transport-security;transfer-encoding;user-agent;vary;via;www-authenticate"
)
STATIC_TABLE: Headers = tuple(  # RFC 7541, appendix A. Indices start at 1.
    (name, value) for name, _, value in (entry.partition(" ") for entry in _STATIC_ENTRIES.split(";"))
)
