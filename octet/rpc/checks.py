"""Single values from outside against a table of limits. Every method raises Refusal: field, limit, value."""

import re
from collections.abc import Mapping, Sequence, Sized

from octet.rpc.range import Range
from octet.rpc.refusal import invalid, shorten
from octet.v1 import specialist_pb2 as wire

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

    def structure(self, structure: wire.Structure) -> None:
        """Sizes and numbers; whether anything can be made of it is for the replica to say."""
        kind = structure.WhichOneof("kind")
        if kind is None:
            raise invalid("structure", "one of json_object, json_schema, regex and choice", "none of them")
        if kind == "choice":
            self._choices(structure.choice.choices)
        elif not getattr(structure, kind):
            raise invalid(f"structure.{kind}", "true" if kind == "json_object" else "not empty", "nothing")
        elif kind != "json_object":
            self.text(f"structure.{kind}", getattr(structure, kind))

    def _choices(self, choices: Sequence[str]) -> None:
        field = "structure.choice.choices"
        self.count(field, choices)
        if not choices:
            raise invalid(field, "not empty", "none")
        for choice in choices:
            if not self.text(field, choice):
                raise invalid(field, "not empty", "''")
        if len(set(choices)) < len(choices):
            raise invalid(field, "choices that differ", f"{len(choices):,} of them")
        self.size("structure.choice", "".join(choices).encode())
