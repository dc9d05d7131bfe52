"""Make invalid inputs from valid ones. The same seed always makes the same input."""

import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tests.fuzz.parser import Parser
from tests.fuzz.wire_fields import field_of

Mutation = Callable[[bytes, Random], bytes]

MOST_BYTES = 1 << 20
_LENGTHS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_DEPTHS = (33, 70, 200, 900, 990, 1100, 3000, 100_000)
_NUMBERS = (
    *(b"0", b"-1", b"-0", b"1e308", b"1e999", b"-1e999", b"1e-999", b"NaN", b"Infinity", b"-Infinity", b"00", b"0x10"),
    *(b"2147483648", b"4294967296", b"9223372036854775808", b"18446744073709551616", b"1.5", b"9" * 400, b"9" * 5000),
)
_TOKENS = (
    *(b"\0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xf4\x90\x80\x80", b"\\ud800", b"\\u0000", b"\r\n"),
    *(b"null", b"true", b"{}", b"[]", b'""', b'"', b"'", b"\\", b"{", b"}", b"[", b"]", b":", b",", b"<", b">", b"%"),
    *("\u2028".encode(), "\u0661".encode(), "\u00b2".encode(), "\U0001f600".encode(), b"../", b"A" * 5000),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**53, 2**63, 2**64, 10**400, 1.5, -0.0, 1e308, float("inf"), float("nan")),
    *("", "\0", "a", "\ud800", "\u0661", "9" * 30, "x" * 5000, "../..", [], {}, [[]], {"": {}}, [None], {"a": 1}),
)
_DIGITS = re.compile(rb"[0-9]+(\.[0-9]+)?")


def mutated(parser: Parser, seed: int) -> bytes:
    """Return a mutated input for the parser. It depends only on the parser and the seed."""
    random = Random(f"{parser.name} {seed}")
    raw = random.choice(parser.seeds)
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        raw = _mutation(parser, random)(raw, random)
    return raw[:MOST_BYTES]


def _mutation(parser: Parser, random: Random) -> Mutation:
    kinds: list[Mutation] = [flip, overwrite, truncate, remove, repeat, token, length, nest]
    if parser.shape != "bytes":
        kinds += [number, number, token]
    if parser.shape == "json":
        kinds += [*[value] * 8, drop_key, drop_key, twice, twice, deep_value]
    if parser.message is not None:
        kinds += [field_of(parser.message)] * 6
    if len(parser.seeds) > 1:
        kinds.append(_splice(parser.seeds))
    if parser.words:
        kinds += [_word(parser.words)] * 3
    return random.choice(kinds)


def flip(raw: bytes, random: Random) -> bytes:
    if not raw:
        return raw
    changed = bytearray(raw)
    for _ in range(random.choice((1, 1, 4, 32))):
        changed[random.randrange(len(raw))] ^= 1 << random.randrange(8)
    return bytes(changed)


def overwrite(raw: bytes, random: Random) -> bytes:
    at = random.randint(0, len(raw))
    return raw[:at] + random.randbytes(random.randint(1, 8)) + raw[at + random.randint(0, 8) :]


def truncate(raw: bytes, random: Random) -> bytes:
    return raw[: random.randint(0, len(raw))]


def remove(raw: bytes, random: Random) -> bytes:
    start, end = _range(raw, random)
    return raw[:start] + raw[end:]


def repeat(raw: bytes, random: Random) -> bytes:
    start, end = _range(raw, random)
    times = random.choice((1, 2, 8, 300))
    return (raw[:end] + raw[start:end] * times + raw[end:])[:MOST_BYTES]


def token(raw: bytes, random: Random) -> bytes:
    return _put(raw, random.choice(_TOKENS), random)


def length(raw: bytes, random: Random) -> bytes:
    """Overwrite 1, 2, 4 or 8 bytes with a boundary value."""
    size = random.choice((1, 2, 4, 8))
    written = (random.choice(_LENGTHS) % (1 << 8 * size)).to_bytes(size, random.choice(("little", "big")))
    at = random.randint(0, len(raw))
    return raw[:at] + written + raw[at + size :]


def nest(raw: bytes, random: Random) -> bytes:
    opening = random.choice((b"[", b'{"a":', b"(", b"{", b"(?:", b"- ", b"<", b"*", b"!", b"\x0a\x02"))
    return _put(raw, opening * random.choice(_DEPTHS), random)


def number(raw: bytes, random: Random) -> bytes:
    """Replace a decimal number in the input."""
    found = list(_DIGITS.finditer(raw))
    if not found:
        return token(raw, random)
    place = random.choice(found)
    return raw[: place.start()] + random.choice(_NUMBERS) + raw[place.end() :]


def value(raw: bytes, random: Random) -> bytes:
    """Replace a JSON value, usually with a value of a different type."""
    return _changed(raw, random, lambda _: random.choice(_VALUES))


def deep_value(raw: bytes, random: Random) -> bytes:
    depth = random.choice(_DEPTHS[:-1])
    if random.random() < 0.5:
        hole = b"[" * depth + b"]" * depth
    else:
        hole = b'{"type":"object","properties":{"a":' * depth + b"1" + b"}}" * depth
    return _changed(raw, random, lambda _: "@hole@").replace(b'"@hole@"', hole, 1)


def drop_key(raw: bytes, random: Random) -> bytes:
    def dropped(old: Any) -> Any:
        if isinstance(old, dict) and old:
            gone = random.choice(sorted(old))
            return {key: each for key, each in old.items() if key != gone}
        return old[:-1] if isinstance(old, list) else None

    return _changed(raw, random, dropped)


def twice(raw: bytes, random: Random) -> bytes:
    """Repeat the items of a list, add an unknown key to an object, or replace any other value by a list of two
    copies."""

    def grown(old: Any) -> Any:
        if isinstance(old, list):
            return old * random.choice((2, 3, 300))
        return {**old, random.choice(("", "x", "__proto__", "$ref")): old} if isinstance(old, dict) else [old, old]

    return _changed(raw, random, grown)


def _changed(raw: bytes, random: Random, change: Callable[[Any], Any]) -> bytes:
    try:
        whole = [json.loads(raw)]
    except (ValueError, RecursionError):
        return flip(raw, random)
    holder, key = random.choice(_holders(whole))
    holder[key] = change(holder[key])
    try:
        return json.dumps(whole[0]).encode()
    except (ValueError, RecursionError):
        return flip(raw, random)


def _holders(whole: Any) -> list[tuple[Any, Any]]:
    """Return every nested value's container, and its key or index there."""
    found: list[tuple[Any, Any]] = []
    open_values = [whole]
    while open_values:
        each = open_values.pop()
        inside = (
            list(each.items()) if isinstance(each, dict) else list(enumerate(each)) if isinstance(each, list) else []
        )
        found += [(each, key) for key, _ in inside]
        open_values += [inner for _, inner in inside]
    return found


def _splice(seeds: Sequence[bytes]) -> Mutation:
    def splice(raw: bytes, random: Random) -> bytes:
        start, end = _range(random.choice(seeds), random)
        other = random.choice(seeds)[start:end]
        at = random.randint(0, len(raw))
        return raw[:at] + other + raw[random.choice((at, len(raw), min(len(raw), at + len(other)))) :]

    return splice


def _word(words: Sequence[bytes]) -> Mutation:
    return lambda raw, random: _put(raw, random.choice(words), random)


def _put(raw: bytes, what: bytes, random: Random) -> bytes:
    at = random.randint(0, len(raw))
    return (raw[:at] + what + raw[at + random.choice((0, 0, len(what), 1)) :])[:MOST_BYTES]


def _range(raw: bytes, random: Random) -> tuple[int, int]:
    start = random.randint(0, len(raw))
    return start, min(len(raw), start + random.choice((1, 2, 8, 64, 4096)))
