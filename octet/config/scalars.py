"""Text into numbers, sizes and durations: only what is written the one obvious way."""

import re
from math import inf

_WHOLE = re.compile(r"[-+]?(0|[1-9](_?[0-9]){0,24})")
_NUMBER = re.compile(r"[-+]?[0-9](_?[0-9]){0,24}(\.[0-9]{0,24})?([eE][-+]?[0-9]{1,3})?")
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,6})?)([kmgt])(?:ib)?", re.IGNORECASE)
_SECONDS = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(us|ms|s|m|h)")
_BYTES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def whole_number(text: str) -> int | None:
    return int(text) if _WHOLE.fullmatch(text) else None


def number(text: str) -> float | None:
    """`.nan` and `.inf` are none; a number too large to be one is infinite, and out of every range."""
    return float(text) if _NUMBER.fullmatch(text) else None


def size(text: str) -> int | None:
    """In bytes: `192m`, `1g`, `1.5gib`, or just bytes."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return whole_number(text)
    return int(float(match[1]) * _BYTES[match[2].lower()])


def seconds(text: str) -> float | None:
    """`250ms`, `2s`, `1m`, or just seconds."""
    match = _SECONDS.fullmatch(text)
    if match is None:
        return number(text)
    value, unit = float(match[1]), match[2]
    return value / 1000 if unit == "ms" else value * _UNITS[unit]


def show_size(num_bytes: float) -> str:
    """The shortest way to write it exactly."""
    for unit in ("t", "g", "m", "k"):
        if num_bytes and num_bytes % _BYTES[unit] == 0:
            return f"{num_bytes / _BYTES[unit]:.0f}{unit}"
    return f"{num_bytes:.0f}" if num_bytes < inf else "inf"
