"""Text cut to a size in bytes: what a caller sends never decides how large a receipt gets."""

from collections.abc import Iterable

_MORE = "…"


def clip(text: str, most: int) -> str:
    """At most so many bytes of UTF-8."""
    raw = text.encode()
    if len(raw) <= most:
        return text
    return raw[: most - len(_MORE.encode())].decode(errors="ignore") + _MORE


def within(texts: Iterable[str], each: int, together: int) -> list[str]:
    """As many of the first as there is room for, each clipped."""
    kept: list[str] = []
    for text in texts:
        clipped = clip(text, each)
        together -= len(clipped.encode())
        if together < 0:
            break
        kept.append(clipped)
    return kept
