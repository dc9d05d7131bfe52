"""Times, shares and durations, for people; and back from what people write."""

import argparse
import re

from octet.clock import wall_ms

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(s|m|h|d)?")
_LONGEST_S = 10 * 365 * 86_400


def duration(seconds: float) -> str:
    """About: two digits say enough."""
    if seconds < 60:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86_400:.0f} d"


def since(unix_ms: int, now_ms: int | None = None) -> str:
    """How long ago; nothing for never."""
    if unix_ms == 0:
        return ""
    now = wall_ms() if now_ms is None else now_ms
    return duration((now - unix_ms) / 1000)


def share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def plain_number(value: float) -> str:
    return f"{value:g}"


def last(text: str) -> float:
    """Seconds, from `24h`, `90m`, `7d` or a number of seconds."""
    found = _DURATION.fullmatch(text.strip())
    value = 0.0 if found is None else float(found[1]) * _UNITS[found[2] or "s"]
    if not 0 < value <= _LONGEST_S:
        raise argparse.ArgumentTypeError(f"a time is written as 24h, 90m, 7d or 3600s, got {text!r}")
    return value
