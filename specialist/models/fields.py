"""Checked values from untrusted files."""

from collections.abc import Mapping
from math import isfinite
from typing import Any


class ModelRefused(ValueError):
    """The files are not a model that can be served. The message states the problem and what to do."""


LARGEST = 2**31 - 1


class ModelFields:
    """Checked access to values read from `source`. An error for a missing or invalid value names its field."""

    def __init__(self, source: str, values: Mapping[str, object]) -> None:
        self.source = source
        self.values = values

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def integer(self, name: str, default: int | None = None, *, low: int = 1, high: int = LARGEST) -> int:
        value: int = self._typed(name, default, int, "an integer")
        if not low <= value <= high:
            raise self.wrong(name, f"must be between {low:,} and {high:,}, got {str(value)[:40]}")
        return value

    def number(self, name: str, default: float | None = None, *, low: float = 0.0, high: float = 1e12) -> float:
        value: float = self._typed(name, default, (int, float), "a number")
        if not (low < value <= high and isfinite(value)):
            raise self.wrong(name, f"must be above {low:g} and at most {high:g}, got {str(value)[:40]}")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        return self.number(name) if self.has(name) else None

    def flag(self, name: str, default: bool | None = None) -> bool:
        return bool(self._typed(name, default, bool, "true or false"))

    def text(self, name: str, default: str | None = None) -> str:
        return str(self._typed(name, default, str, "text"))

    def optional_text(self, name: str) -> str | None:
        return self.text(name) if self.has(name) else None

    def table(self, name: str) -> "ModelFields":
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise self.wrong(name, f"must be an object, got {value!r:.80}")
        return ModelFields(f"{self.source}: {name}", value)

    def listed(self, name: str) -> list[object]:
        return list(self._typed(name, None, list, "a list"))

    def texts(self, name: str) -> list[str]:
        listed = self.listed(name)
        words = [word for word in listed if isinstance(word, str)]
        if len(words) != len(listed):
            raise self.wrong(name, "must be a list of strings")
        return words

    def wrong(self, name: str, why: str) -> ModelRefused:
        return ModelRefused(f"{self.source}: {name} {why}")

    def _typed(self, name: str, default: object, kind: type | tuple[type, ...], expected: str) -> Any:
        value = self.values.get(name)
        if value is None and default is None:
            raise self.wrong(name, "is missing: the file is incomplete; fetch or convert the model again")
        value = default if value is None else value
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.wrong(name, f"must be {expected}, got {value!r:.80}")
        return value
