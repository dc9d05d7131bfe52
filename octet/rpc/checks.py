"""Single values from outside against a table of limits. Every method raises Refusal: field, limit, value."""

import re
from collections.abc import Mapping, Sequence, Sized

from octet.rpc.range import Range
from octet.rpc.refusal import invalid, shorten

_NAME = re.compile(r"[a-z0-9._-]+")
_ROLE = re.compile(r"[a-z_]+")


class Checks:
    """By the field's name on the wire."""

    def __init__(self, ranges: Mapping[str, Range], sizes: Mapping[str, int], counts: Mapping[str, int]) -> None:
        """`sizes` are bytes of a text, `counts` elements of a list, at most."""
        self._ranges = ranges
        self._sizes = sizes
        self._counts = counts

    def in_range(self, field: str, value: float) -> float:
        allowed = self._ranges[field]
        if value not in allowed:
            raise invalid(field, str(allowed), str(value))
        return value

    def size(self, field: str, raw: bytes) -> bytes:
        most = self._sizes[field]
        if len(raw) > most:
            raise invalid(field, f"at most {most:,} bytes", f"{len(raw):,} bytes")
        return raw

    def text(self, field: str, text: str) -> str:
        if text:
            self.size(field, text.encode())
        return text

    def count(self, field: str, values: Sized) -> None:
        most = self._counts[field]
        if len(values) > most:
            raise invalid(field, f"at most {most:,} of them", f"{len(values):,}")

    def identifier(self, field: str, text: str) -> str:
        """It is written to logs: nothing in it may look like another line."""
        if not self.text(field, text).isprintable():
            raise invalid(field, "printable", shorten(text))
        return text

    def name(self, field: str, name: str) -> str:
        if not _NAME.fullmatch(self.text(field, name)):
            raise invalid(field, "lowercase letters, digits, dots, dashes and underscores", shorten(name))
        return name

    def names(self, field: str, names: Sequence[str]) -> tuple[str, ...]:
        if not names:
            return ()
        self.count(field, names)
        if len(set(names)) < len(names):
            raise invalid(field, "names that differ", shorten(", ".join(names)))
        return tuple(self.name(field, name) for name in names)

    def role(self, field: str, role: str) -> str:
        if not _ROLE.fullmatch(self.text(field, role)):
            raise invalid(field, "lowercase letters and underscores", shorten(role))
        return role

    def stops(self, stops: Sequence[str]) -> tuple[str, ...]:
        self.count("stop", stops)
        for stop in stops:
            if not self.text("stop", stop):
                raise invalid("stop", "not empty", "''")
        return tuple(stops)
