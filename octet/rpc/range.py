"""The least and the most a number from outside may be."""

from math import isfinite
from typing import NamedTuple


class Range(NamedTuple):
    least: float
    most: float
    open: bool = False
    """Whether the least itself is out of range."""
    or_zero: bool = False
    """Whether 0 is fine as well."""

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int | float) or not isfinite(value):
            return False
        if self.or_zero and value == 0:
            return True
        return (self.least < value if self.open else self.least <= value) and value <= self.most

    def __str__(self) -> str:
        zero = "0 or " if self.or_zero else ""
        return f"{zero}in {'(' if self.open else '['}{self.least:,}, {self.most:,}]"
